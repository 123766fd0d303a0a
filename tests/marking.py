"""Experiments whose forward is one function with marks, and what its programs count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from tracing import constants_of, run, tracer

from nitro_dialect.types import TensorType
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.setup import Setup, prepare
from nitroc.frontend.trace import Tracer

X = np.arange(6, dtype=np.float32)
W = np.ones(6, np.float32)

Forward = Callable[[Any, Any], Any]
"""From the batch `x : f32[6]` and the parameter `w : f32[6]` to outputs of six rows."""

WORDS = {
    "seed": np.array([0, 42], np.uint32),
    "step": np.array([0, 3], np.uint32),
    "micro": np.int32(1),
    "split": np.int32(1),
    "index": np.int32(2),
}


def experiment(function: Forward, **hooks: Any) -> Experiment:
    """`forward` is `function`; `hooks` are further methods, or others for those there are."""

    def build_model(self: Any, key: Any) -> Any:
        return None, {"w": jnp.asarray(W)}, {}

    def forward(self: Any, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return function(x, params["w"]), state

    def loss(self: Any, outputs: Any) -> Any:
        return jnp.sum(outputs)

    members = {"build_model": build_model, "forward": forward, "loss": loss, **hooks}
    return type("Marked", (Experiment,), {"__module__": __name__, **members})()


def setup_of(made: Experiment) -> Setup:
    """The experiment set up on its own `build_data`."""
    return prepare(made, {}, {})


def traced(function: Forward, *, batch: Mapping[str, Any] | None = None, **hooks: Any) -> Tracer:
    """The tracer of an experiment; `batch` holds what its batches have beside `x`."""
    return tracer(experiment(function, **hooks), {"x": X, **(batch or {})})


def arguments(made: Tracer, batch: Mapping[str, Any]) -> dict[str, Any]:
    groups = made.groups
    values: dict[str, Any] = {
        "params": [groups.initial[f"param/{leaf.path}"] for leaf in groups.params.leaves],
        "state": [groups.initial[f"state/{leaf.path}"] for leaf in groups.state.leaves],
        **{name: leaf.value for name, leaf in made.setup.device.items()},
    }
    return values | WORDS | dict(batch)


def words(imported: ImportedFunction, given: Mapping[str, Any]) -> dict[str, Any]:
    """The results `mark.*` of one run, by `<key>:<channel>`."""
    found = run(imported, dict(given) | constants_of(imported))
    results = imported.function.results
    names = [r.name for r in results]
    marks = [i for i, name in enumerate(names) if name.startswith("mark.")]
    # what is before them is of rank 0, or they come last
    scalars = all(isinstance(r.type, TensorType) for r in results[: marks[0]]) if marks else True
    start = marks[0] if marks and scalars else len(found) - len(marks)
    values = found[start : start + len(marks)]
    return {
        names[i].removeprefix("mark."): value.item() for i, value in zip(marks, values, strict=True)
    }
