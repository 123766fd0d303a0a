"""Stopping rules, asked once per epoch after validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nitro_runtime.errors import UsageError, near

MODES = ("min", "max")


class EarlyStopping:
    """Stops after `patience` epochs in a row that did not improve.

    An epoch improves when `metric` beats the best so far by strictly more than `min_delta`
    (absolute). E-USAGE-067 for a patience below 1, a negative min_delta or an unknown mode.
    """

    def __init__(
        self,
        metric: str = "val_loss",
        mode: str = "min",
        patience: int = 5,
        min_delta: float = 1e-4,
    ) -> None:
        check_mode(mode, "early_stop")
        if patience < 1:
            raise UsageError(
                67, f"patience is {patience}, expected at least 1", where="option early_stop"
            )
        if not (math.isfinite(min_delta) and min_delta >= 0):
            raise UsageError(
                67,
                f"min_delta is {min_delta}, expected a finite number >= 0",
                where="option early_stop",
            )
        self.metric = metric
        self.mode = mode
        self.patience = patience
        self.min_delta = min_delta
        self.best: float | None = None
        self.bad_epochs = 0

    def should_stop(self, epoch: int, metrics: Mapping[str, Any]) -> bool:
        """Whether to stop after this epoch; a metric that is missing or not finite is never acted
        on."""
        value = metrics.get(self.metric)
        if value is None or not math.isfinite(value):
            return False
        if self._improves(float(value)):
            self.best, self.bad_epochs = float(value), 0
            return False
        self.bad_epochs += 1
        return self.bad_epochs >= self.patience

    def _improves(self, value: float) -> bool:
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta

    def rule(self) -> dict[str, Any]:
        """What decides; a run resumed under another rule may go on."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "patience": self.patience,
            "min_delta": self.min_delta,
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON for the checkpoint."""
        return {**self.rule(), "best": self.best, "bad_epochs": self.bad_epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the memory of an earlier part of the run (the rule stays this one's)."""
        self.best = state["best"]
        self.bad_epochs = int(state["bad_epochs"])


def check_mode(mode: str, option: str) -> None:
    """E-USAGE-067 unless `mode` is `min` or `max`."""
    if mode not in MODES:
        raise UsageError(
            67,
            f"mode is {mode!r}, expected min or max{near(str(mode), MODES)}",
            where=f"option {option}",
        )


def check_metric(metric: str | None, emitted: list[str], option: str) -> None:
    """E-USAGE-067 for a metric that nobody emits, naming those emitted."""
    if metric is None or metric in emitted:
        return
    raise UsageError(
        67,
        f"nobody emits the metric {metric!r}{near(metric, emitted)}",
        where=f"option {option}",
        help=f"those emitted are: {', '.join(emitted) or 'none (there is no val split)'}",
    )
