"""A run: everything the training loop, checkpoints and the engine share."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nitro_runtime.diagnostics import Selection
from nitro_runtime.evaluation import Evaluator
from nitro_runtime.history import History
from nitro_runtime.host import HostHooks
from nitro_runtime.logging import Loggers
from nitro_runtime.machine import Machine
from nitro_runtime.options import RunOptions
from nitro_runtime.progress import Display
from nitro_runtime.restore import Restored
from nitro_runtime.run_dir import RunDirectory
from nitro_runtime.scalars import Scalars
from nitro_runtime.training import EpochSums


@dataclass
class Run:
    """What a run is made of, and where it stands.

    `restored` is the record it goes on from, `weights_from` what a warm start took, which step
    `weights_step` of another run had made. `step` counts tried optimizer steps, `t` committed
    ones, `epochs` finished epochs; `position` is
    the train batches consumed of the epoch under way, `sums` what its steps add up to; `total` is
    the horizon; `selection` the diagnostics that were asked for.
    """

    machine: Machine
    scalars: Scalars
    host: HostHooks
    options: RunOptions
    evaluator: Evaluator
    loggers: Loggers
    display: Display
    directory: RunDirectory
    checkpointer: Any
    stopper: Any
    seed: int
    total: int
    run_id: str
    selection: Selection | None = None
    trains: bool = True
    notes: list[str] = field(default_factory=list[str])
    parent: dict[str, Any] | None = None
    weights_from: str | None = None
    weights_step: int = 0
    restored: Restored | None = None
    history: History = field(default_factory=History)
    step: int = 0
    t: int = 0
    epochs: int = 0
    position: int = 0
    sums: EpochSums = field(default_factory=EpochSums)
    stop_reason: str | None = None
    requested: bool = False
    started: float = field(default_factory=time.monotonic)
    last_checkpoint: tuple[str, int] | None = None

    def note(self, text: str) -> None:
        """A line for the person now, and for the report."""
        self.notes.append(text)
        self.say(text)

    def say(self, text: str) -> None:
        """One line for the person at the terminal."""
        self.display.say(text)

    @property
    def epoch(self) -> int:
        """The epoch under way, or the last one when none is."""
        return self.epochs + (1 if self.position else 0)

    def control_metrics(self) -> list[str]:
        """The metrics that rank checkpoints or stop the run."""
        found = [getattr(part, "metric", None) for part in (self.checkpointer, self.stopper)]
        return list(dict.fromkeys(name for name in found if name is not None))

    def params(self) -> dict[str, Any]:
        """For `log_params`: ids, options, whatever the host knows."""
        return {
            "run_id": self.run_id,
            "parent": None if self.parent is None else self.parent["run_id"],
            **self.host.params(),
        }


def scalars_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers among finalized metrics; arrays are returned, never logged."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if getattr(value, "shape", ()) == () and hasattr(value, "item"):
            value = value.item()
        if isinstance(value, bool | int | float):
            found[name] = value
    return found


def store_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A history row as strict JSON: a number that is not finite is its name."""
    return {
        name: repr(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def load_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `store_row`."""
    return {
        name: float(value) if value in ("nan", "inf", "-inf") else value
        for name, value in row.items()
    }
