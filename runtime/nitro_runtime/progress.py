"""What a person sees while a run goes on: a display on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
from typing import Any, Protocol, TextIO


class Display(Protocol):
    """Where progress and one-line notes go."""

    def say(self, text: str) -> None: ...
    def start(self, epochs: int, steps: int) -> None: ...
    def step(self, epoch: int, step: int, loss: float) -> None: ...
    def epoch(self, row: dict[str, Any], seconds: float) -> None: ...
    def stop(self) -> None: ...


class Quiet:
    """Shows nothing."""

    def say(self, text: str) -> None:
        return None

    def start(self, epochs: int, steps: int) -> None:
        return None

    def step(self, epoch: int, step: int, loss: float) -> None:
        return None

    def epoch(self, row: dict[str, Any], seconds: float) -> None:
        return None

    def stop(self) -> None:
        return None


class Lines(Quiet):
    """One line per note and epoch, for pipes and files."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._epochs = 0

    def say(self, text: str) -> None:
        print(text, file=self._stream or sys.stderr, flush=True)

    def start(self, epochs: int, steps: int) -> None:
        self._epochs = epochs

    def epoch(self, row: dict[str, Any], seconds: float) -> None:
        self.say(epoch_line(row, self._epochs, seconds))


def display(quiet: bool) -> Display:
    """The display that fits: none, live on a terminal, lines otherwise."""
    if quiet:
        return Quiet()
    if not sys.stderr.isatty():
        return Lines()
    from nitro_runtime.bars import Bars  # it imports rich, which nothing but a terminal needs

    return Bars()


def epoch_line(row: dict[str, Any], epochs: int, seconds: float) -> str:
    """`epoch 3/40  step 135  loss 0.1234  val_loss 0.2001  (0.4 s)`."""
    values = [
        f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
        if name not in ("epoch", "step")
    ]
    head = f"epoch {row['epoch']}/{epochs}  step {row['step']}"
    return "  ".join([head, *values, f"({seconds:.1f} s)"])
