"""Rows of the conformance list on fields, markers and accessors, at the front end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from declared import Tiny, import_source, refused, set_up

from nitroc.frontend import fields as nt
from nitroc.frontend.values import content_key
from nitroc.frontend.view import compile_view, refuse_returned


class Constant(Tiny):
    value: nt.GraphConst[Any] = 0


def key(value: Any) -> Any:
    """The key of a GraphConst value after setup."""
    return content_key(set_up(Constant(value=value)).graphconst["value"])


def test_B04_constants_are_keyed_by_type_and_bits() -> None:
    distinct = [1, True, 1.0, np.float32(1), 0.0, -0.0, 0, False, math.nan]
    assert len({key(value) for value in distinct}) == len(distinct)
    assert key(math.nan) == key(float("nan"))
    assert key([1, (2.0, "a")]) == key([1, (2.0, "a")])
    assert key([1]) != key([True])


def test_B04_a_mutated_constant_does_not_change_a_setup_and_is_another_key() -> None:
    sizes = [1, 2]
    setup = set_up(Constant(value=sizes))
    before = content_key(setup.graphconst["value"])
    sizes.append(3)
    assert setup.graphconst["value"] == [1, 2]
    assert content_key(setup.graphconst["value"]) == before
    assert key(sizes) != before


class Leaking(Tiny):
    epochs: nt.Host[int] = 3

    def read(self) -> Any:
        return self.epochs + 1

    def compared(self) -> Any:
        return self.epochs > 2

    def hashed(self) -> Any:
        return {self.epochs: 1}

    def formatted(self) -> Any:
        return f"{self.epochs}"

    def returned(self) -> Any:
        return {"out": self.epochs}


@pytest.mark.parametrize("use", ["read", "compared", "hashed", "formatted", "returned"])
def test_B06_a_host_field_in_a_traced_hook(use: str) -> None:
    view = compile_view(Leaking(), {}, hook="forward")
    line = getattr(Leaking, use).__code__.co_firstlineno

    def run() -> None:
        refuse_returned(getattr(view, use)(), "forward", f"test_fields.py:{line + 1}")

    error = refused("E-FIELD-001", run)
    assert "epochs" in error.what
    assert error.where is not None
    assert error.where.startswith("hook forward")
    assert error.where.endswith(f"test_fields.py:{line + 1}")
    assert error.help is not None
    for fix in ("nt.GraphConst[...]", "nt.Device[...]", "read it on the host"):
        assert fix in error.help


class Field(Tiny):
    learning_rate: float = 0.5


class Property(Tiny):
    @property
    def learning_rate(self) -> float:
        return 0.5


class Method(Tiny):
    def learning_rate(self, group: str) -> float:
        assert group == "default"
        return 0.5


@pytest.mark.parametrize("cls", [Field, Property, Method])
def test_B12_accessors_bind_as_field_property_and_method(cls: type[Tiny]) -> None:
    setup = set_up(cls())
    assert setup.optimizer.learning_rate == 0.5
    assert setup.optimizer.sources["learning_rate"] == "attribute"


def test_B12_a_field_named_like_a_hook_is_refused_with_its_line(tmp_path: Path) -> None:
    source = (
        "from nitroc.frontend.experiment import Experiment\n\n"
        "class Bad(Experiment):\n"
        "    width: int = 3\n"
        "    forward: int = 4\n"
    )
    error = refused("E-FIELD-006", lambda: import_source(tmp_path / "exp.py", source))
    assert "forward" in error.what
    assert error.where == "Bad.forward (exp.py:5)"
