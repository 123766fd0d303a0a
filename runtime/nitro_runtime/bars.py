"""Progress on a terminal: a live display that rich draws."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from nitro_runtime.progress import Quiet, epoch_line

_REFRESH_SECONDS = 0.1


class Bars(Quiet):
    """A live display with loss, throughput and time left."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._epochs = 0
        self._shown = 0.0
        self._began = (0, 0.0)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, epochs: int, steps: int) -> None:
        self._epochs = epochs
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total}"),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self._console,
            refresh_per_second=5,
            transient=True,
        )
        self._task = self._progress.add_task("train", total=steps, epoch="-", loss="-", rate="")
        self._progress.start()

    def step(self, epoch: int, step: int, loss: float) -> None:
        now = time.monotonic()
        if self._progress is None or self._task is None or now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        if not self._began[1]:
            self._began = (step, now)
        taken = now - self._began[1]
        rate = f"{(step - self._began[0]) / taken:.0f} steps/s" if taken > 0 else ""
        shown = f"{epoch}/{self._epochs}"
        self._progress.update(
            self._task, completed=step, epoch=shown, loss=f"{loss:.5g}", rate=rate
        )

    def epoch(self, row: dict[str, Any], seconds: float) -> None:
        self.say(epoch_line(row, self._epochs, seconds))

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
