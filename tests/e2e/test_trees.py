"""Parameters and state come back in the containers of `build_model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from whole import INPUTS, Linear

import nitroc as nt


class Affine(NamedTuple):
    w: Any
    b: Any


class Named(Linear):
    def build_model(self, key: Any) -> Any:
        return None, Affine(np.ones(INPUTS, np.float32), np.float32(0)), ({"seen": np.int32(3)},)

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return x @ params.w + params.b, state


def test_a_handle_and_a_bundle_with_its_python_give_the_same_trees(tmp_path: Path) -> None:
    options: dict[str, Any] = {"quiet": True, "checkpointer": None, "logger": None}
    fresh = nt.Nitro(Named(), run_dir=str(tmp_path / "a"), **options)
    path = nt.build(Named(), tmp_path / "bundle")
    opened = nt.open_bundle(path, run_dir=str(tmp_path / "b"), **options)
    for handle in (fresh, opened):
        assert type(handle.parameters).__name__ == "Affine"
        np.testing.assert_array_equal(handle.parameters.w, np.ones(INPUTS, np.float32))
        assert handle.state[0]["seen"] == 3
    fresh.parameters.w[:] = 7  # a copy: what trains is not changed by it
    assert fresh.parameters.w[0] == 1
    fresh.train()
    opened.train()
    np.testing.assert_array_equal(fresh.parameters.w, opened.parameters.w)
