"""Small experiments for tests of declaring and setting up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_runtime.errors import NitroError
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.setup import Setup, prepare

ROWS, WIDTH, CLASSES = 8, 3, 2


def batches(count: int = 2, rows: int = 4, **fields: Any) -> list[dict[str, Any]]:
    """A list of `count` batches: x f32[rows,3], label i32[rows], and `fields` as given."""
    x = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
    label = np.arange(rows, dtype=np.int32) % CLASSES
    return [{"x": x, "label": label, **fields} for _ in range(count)]


class Tiny(Experiment):
    """The least that sets up; hooks are replaced by subclasses."""

    def build_data(self) -> dict[str, Any]:
        return {"train": batches()}

    def build_model(self, key: Any) -> Any:
        return None, {"w": jnp.ones((WIDTH, CLASSES)), "b": jnp.zeros(CLASSES)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return x @ params["w"] + params["b"], state

    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.mean()


def tiny(train: Any = None, **members: Any) -> Experiment:
    """An instance of a class like Tiny with other members (None: without), or other batches."""
    if train is not None:
        members["build_data"] = lambda self: {"train": train}
    hooks = {name: hook for name, hook in vars(Tiny).items() if not name.startswith("_")}
    kept = {name: hook for name, hook in {**hooks, **members}.items() if hook is not None}
    return type("Tiny", (Experiment,), kept)()


def set_up(experiment: Experiment, **keywords: Any) -> Setup:
    return prepare(experiment, keywords, {})


def refused(code: str, call: Callable[[], Any]) -> NitroError:
    """The error `call` raises, which must have `code`."""
    with pytest.raises(NitroError) as caught:
        call()
    assert caught.value.code == code, str(caught.value)
    return caught.value


def import_source(path: Path, source: str) -> dict[str, Any]:
    """The names of a Python file written at `path`: its lines are what errors point at."""
    path.write_text(source)
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(source, str(path), "exec"), names)
    return names
