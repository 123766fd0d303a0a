"""Small experiments through the whole stack: a handle, quiet, with what it reports kept."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from journal import Journal

import nitroc as nt

ROWS, INPUTS = 4, 3


def rows(count: int, start: int = 0) -> dict[str, np.ndarray]:
    """x f32[count,3] and y f32[count], random."""
    rng = np.random.default_rng(start)
    x = rng.normal(size=(count, INPUTS)).astype(np.float32)
    return {"x": x, "y": (x @ np.float32([1, -2, 0.5])).astype(np.float32)}


class Linear(nt.Experiment):
    """Least squares on `w` (3 floats) and `b`, by SGD; 4 batches of 4 rows, val 6 rows by 4."""

    learning_rate: float = 0.1

    def build_data(self) -> Any:
        return {"train": nt.data.arrays(rows(16), ROWS), "val": nt.data.arrays(rows(6, 1), ROWS)}

    def build_model(self, key: Any) -> Any:
        return None, {"w": np.ones(INPUTS, np.float32), "b": np.float32(0)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return x @ params["w"] + params["b"], state

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return ((outputs - y) ** 2).mean()

    def optimizer(self, group: str) -> Any:
        return nt.rules.SGD


def handle(experiment: Any, run_dir: Any, **options: Any) -> nt.Nitro:
    """A quiet handle that writes no checkpoints unless asked to."""
    given = {"quiet": True, "run_dir": str(run_dir), "checkpointer": None, "logger": Journal()}
    return nt.Nitro(experiment, **{**given, **options})


def trained(experiment: Any, run_dir: Any, **options: Any) -> nt.Nitro:
    return handle(experiment, run_dir, **options).train()


def losses(nitro: nt.Nitro) -> list[float]:
    """The loss of every train line."""
    return [line["loss"] for line in nitro.logger.lines("train")]


def missed(before: Mapping[str, Any]) -> list[str]:
    """Programs compiled since `before = nt.cache_stats()`, sorted."""
    return sorted(r.partition(":")[0] for r in reasons(before))


def reasons(before: Mapping[str, Any]) -> list[str]:
    """Why, one line per program compiled since."""
    return nt.cache_stats()["reasons"][len(before["reasons"]) :]


def module(path: Path, source: str) -> types.ModuleType:
    """A Python file at `path`, imported under the name of its stem."""
    path.write_text(source)
    made = types.ModuleType(path.stem)
    made.__file__ = str(path)
    sys.modules[path.stem] = made
    exec(compile(source, str(path), "exec"), made.__dict__)
    return made


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


__all__ = [
    "INPUTS",
    "ROWS",
    "Linear",
    "bits",
    "handle",
    "jnp",
    "losses",
    "missed",
    "module",
    "reasons",
    "rows",
    "trained",
]
