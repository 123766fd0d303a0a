"""The compile view: what traced hooks may and may not see."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from declared import refused

from nitroc.frontend import fields as nt
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.view import compile_view, refuse_returned


class Seen(Experiment):
    width: nt.GraphConst[int] = 4
    scale: nt.Device[float] = 2.0
    epochs: int = 7

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", [1, 2])

    @property
    def double(self) -> int:
        return 2 * self.width

    @functools.cached_property
    def scaled(self) -> Any:
        return self.scale * self.double

    def forward(self) -> Any:
        return self.epochs


def test_the_view_is_the_class_with_device_values_replaced() -> None:
    view = compile_view(Seen(), {"scale": 3.0}, hook="forward")
    assert isinstance(view, Seen)
    assert (view.width, view.double, view.scale, view.scaled) == (4, 8, 3.0, 24.0)


def test_device_values_are_traced() -> None:
    made = jax.jit(lambda s: compile_view(Seen(), {"scale": s}, hook="forward").scaled)
    assert made(jnp.float32(0.5)) == 4.0


USES: list[Callable[[Any], Any]] = [
    lambda x: x + 1,
    lambda x: 1 - x,
    lambda x: -x,
    lambda x: x == 7,
    lambda x: x < 7,
    lambda x: 7 in x,
    bool,
    hash,
    iter,
    len,
    list,
    str,
    repr,
    "{}".format,
    lambda x: f"{x:>3}",
    bytes,
    int,
    float,
    math.sqrt,
    range,
    lambda x: [0, 1][x],
    lambda x: x[0],
    lambda x: x(),
    lambda x: x.real,
    lambda x: setattr(x, "a", 1),
    lambda x: isinstance(x, int),
    copy.copy,
    copy.deepcopy,
    jnp.asarray,
    lambda x: jnp.ones(3) * x,
    jnp.zeros,
]


@pytest.mark.parametrize("use", USES)
def test_B06_every_use_of_a_host_field_is_refused(use: Callable[[Any], Any]) -> None:
    stripped = compile_view(Seen(), {}, hook="forward").forward()
    error = refused("E-FIELD-001", lambda: use(stripped))
    assert "epochs" in error.what
    assert "forward" in error.what
    assert error.where is not None
    assert "test_view.py:" in error.where
    assert error.help is not None
    for fix in ("GraphConst", "Device", "on the host"):
        assert fix in error.help


def test_B06_the_line_is_that_of_the_use() -> None:
    stripped = compile_view(Seen(), {}, hook="loss").forward()
    error = refused("E-FIELD-001", lambda: stripped + 1)
    here = test_B06_the_line_is_that_of_the_use.__code__.co_firstlineno + 2
    assert error.where is not None
    assert error.where.endswith(f"test_view.py:{here}")


def test_B06_a_host_field_returned_from_a_hook_is_refused() -> None:
    stripped = compile_view(Seen(), {}, hook="forward").forward()
    result = ({"logits": [1, stripped]}, {})
    error = refused("E-FIELD-001", lambda: refuse_returned(result, "forward", "exp.py:3"))
    assert "0.logits.1" in error.what
    assert error.where == "hook forward, exp.py:3"
    refuse_returned(({"logits": 1}, None), "forward", "exp.py:3")


def test_whatever_else_the_instance_stores_is_stripped_too() -> None:
    view: Any = compile_view(Seen(), {}, hook="forward")
    assert "table" in refused("E-FIELD-001", lambda: view.table[0]).what
