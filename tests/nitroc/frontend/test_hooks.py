"""Hooks: required ones, signatures, those this version does not run, and their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from declared import Tiny, refused, set_up, tiny

from nitroc.frontend import fields as nt
from nitroc.frontend.hooks import NOT_RUN, traced


@pytest.mark.parametrize("name", ["build_data", "build_model", "forward", "loss"])
def test_a_missing_hook_is_named_with_its_signature(name: str) -> None:
    error = refused("E-HOOK-001", lambda: set_up(tiny(**{name: None})))
    assert name in error.what
    assert error.help is not None
    assert f"def {name}(self" in error.help
    assert error.exit == 3


def test_a_misspelt_hook_is_pointed_at() -> None:
    misspelt = tiny(forward=None, foward=lambda self, model, params, state, *, x: (x, state))
    assert "foward" in refused("E-HOOK-001", lambda: set_up(misspelt)).also[0]


def test_data_given_needs_no_build_data() -> None:
    assert set_up(tiny(build_data=None), data={}).splits == {}


def loss_by_position(self: Any, outputs: Any, label: Any) -> Any: ...
def loss_without_outputs(self: Any, *, label: Any) -> Any: ...
def loss_of_anything(self: Any, *outputs: Any) -> Any: ...
def forward_without_state(self: Any, model: Any, params: Any, *, x: Any) -> Any: ...
def model_without_key(self: Any) -> Any: ...
def model_with_keyword(self: Any, key: Any, *, width: int) -> Any: ...
def data_with_rank(self: Any, rank: int) -> Any: ...


@pytest.mark.parametrize(
    ("name", "hook", "says"),
    [
        ("loss", loss_by_position, "keyword-only"),
        ("loss", loss_without_outputs, "outputs is missing"),
        ("loss", loss_of_anything, "*args"),
        ("forward", forward_without_state, "state is missing"),
        ("build_model", model_without_key, "key is missing"),
        ("build_model", model_with_keyword, "width"),
        ("build_data", data_with_rank, "rank"),
    ],
)
def test_a_wrong_signature_says_what_is_wrong_and_where(name: str, hook: Any, says: str) -> None:
    error = refused("E-HOOK-002", lambda: set_up(tiny(**{name: hook})))
    assert says in error.what
    assert error.where is not None
    assert error.where.endswith(f"test_hooks.py:{hook.__code__.co_firstlineno}")


@pytest.mark.parametrize("name", [*NOT_RUN, "export_inputs", "export_preprocess"])
def test_a_hook_that_is_not_run_is_never_ignored(name: str) -> None:
    hook = tiny(**{name: lambda self, *args: None})
    error = refused("E-HOOK-005", lambda: set_up(hook))
    assert name in error.what
    assert "this version" in error.what


def test_manual_training_is_not_run_and_can_be_declined() -> None:
    assert refused("E-HOOK-005", lambda: set_up(Manual(manual_training=True)))
    set_up(Manual(manual_training=False))


class Manual(Tiny):
    manual_training: bool

    def train_step(self, model: Any, params: Any, opt_state: Any, state: Any) -> Any: ...


def test_anchors_and_groups_that_are_not_run() -> None:
    set_up(tiny(decay_anchor=lambda self, group: "zero"))
    anchored = tiny(decay_anchor=lambda self, group: "init")
    assert "decay_anchor" in refused("E-HOOK-005", lambda: set_up(anchored)).what
    set_up(tiny(param_group=lambda self, path, leaf: "default"))
    grouped = tiny(param_group=lambda self, path, leaf: "head" if path == ("w",) else "default")
    assert "('w',)" in refused("E-HOOK-005", lambda: set_up(grouped)).what


def test_no_decay_is_checked_when_asked() -> None:
    setup = set_up(tiny(no_decay=lambda self, path, leaf: path == ("w",)))
    flags = {leaf.path: set(leaf.flags) for leaf in setup.groups.params.leaves}
    assert flags == {"w": set(), "b": {"decay"}}
    bad = tiny(no_decay=lambda self, path, leaf: "no")
    assert "no_decay" in refused("E-HOOK-006", lambda: set_up(bad)).what


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("build_model", lambda self, key: ({}, {})),
        ("build_model", lambda self, key: None),
        ("derive", lambda self, data: 3),
        ("metrics_residency", lambda self, hook: "gpu"),
    ],
)
def test_a_hook_that_returns_something_else(name: str, hook: Any) -> None:
    error = refused("E-HOOK-006", lambda: set_up(tiny(**{name: hook})))
    assert name in error.what
    assert "expected" in error.what


def test_what_a_host_hook_raises_surfaces_as_itself_with_a_note() -> None:
    def build_data(self: Any) -> Any:
        raise KeyError("nowhere")

    with pytest.raises(KeyError, match="nowhere") as caught:
        set_up(tiny(build_data=build_data))
    note = caught.value.__notes__[0]
    assert note.startswith("in hook build_data, ")
    assert note.endswith(f"test_hooks.py:{build_data.__code__.co_firstlineno}")


class FromView(Tiny):
    width: nt.GraphConst[int] = 2
    scale: nt.Device[float] = 3.0
    path: str = "weights"

    @traced
    def build_model(self, key: Any) -> Any:
        return None, {"w": np.full((3, self.width), self.scale, np.float32), "b": np.ones(2)}, {}


def test_a_traced_build_model_sees_the_compile_view() -> None:
    setup = set_up(FromView())
    assert setup.traced_init
    assert setup.groups.initial["param/w"].tolist() == [[3.0] * 2] * 3

    class Reads(FromView):
        @traced
        def build_model(self, key: Any) -> Any:
            return None, {"w": np.ones(len(self.path))}, {}

    assert "path" in refused("E-FIELD-001", lambda: set_up(Reads())).what
