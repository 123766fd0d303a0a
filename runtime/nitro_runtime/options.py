"""The options of one run, resolved: what `nitroc run` and `Nitro` hand to the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nitro_runtime.errors import UsageError

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def parse_duration(value: float | str) -> float:
    """Seconds of `90`, `"90"`, `"45s"`, `"10m"`, `"2h30m"`; E-USAGE-061 for anything else."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is None or not any(found.groups()):
            raise _bad_duration(value)
        hours, minutes, seconds = (float(part or 0) for part in found.groups())
        value = hours * 3600 + minutes * 60 + seconds
    if not 0 < value < float("inf"):
        raise _bad_duration(value)
    return float(value)


def _bad_duration(value: object) -> UsageError:
    return UsageError(
        61,
        f"max_time is {value!r}, expected seconds above 0 or a text like 2h30m",
        where="option max_time",
        help="give seconds, or hours, minutes and seconds: 90, 45s, 10m, 2h30m",
    )


@dataclass(frozen=True)
class RunOptions:
    """Every run option that takes effect when a bundle runs (baked ones are in the manifest).

    `resume`: False, `"auto"`, `"latest"`, `"best"`, a run id or a path. `checkpoint`: the one warm
    start. `diagnostics`: patterns over names; those that fit run at multiples of `sample_every`.
    `backend`: platform to run on, None for the bundle's. `max_time` in seconds.
    `quiet`: no progress and no notes, errors only.
    """

    seed: int = 42
    max_epochs: int = 1
    max_steps: int | None = None
    max_time: float | str | None = None
    run_dir: str | Path = "runs/Experiment"
    tags: tuple[str, ...] = ()
    log_every: int = 1
    diagnostics: tuple[str, ...] = ()
    sample_every: int = 100
    resume: bool | str | Path = False
    checkpoint: str | Path | None = None
    on_nonfinite_metric: Literal["error", "ignore"] = "error"
    schedule_total: int | None = None
    backend: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        _in_range("seed", self.seed, 0, 2**63 - 1)
        _in_range("max_epochs", self.max_epochs, 0)
        _in_range("log_every", self.log_every, 1)
        _in_range("sample_every", self.sample_every, 1)
        if self.max_steps is not None:
            _in_range("max_steps", self.max_steps, 1)
        if self.schedule_total is not None:
            _in_range("schedule_total", self.schedule_total, 1)
        if self.max_time is not None:
            object.__setattr__(self, "max_time", parse_duration(self.max_time))
        if self.on_nonfinite_metric not in ("error", "ignore"):
            raise UsageError(
                60,
                f"on_nonfinite_metric is {self.on_nonfinite_metric!r}, expected error or ignore",
                where="option on_nonfinite_metric",
            )
        if self.resume and self.checkpoint is not None:
            raise UsageError(
                62,
                "resume and checkpoint are both given: two sources for the parameters",
                where="options resume, checkpoint",
                help="resume continues a run; checkpoint starts a fresh one from its weights",
            )

    @property
    def seconds(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else float(self.max_time)


def _in_range(name: str, value: Any, low: int, high: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= low and (high is None or value <= high):
        return
    bound = f"{low} .. {high}" if high is not None else f">= {low}"
    raise UsageError(
        60, f"{name} is {value!r}, expected a whole number {bound}", where=f"option {name}"
    )
