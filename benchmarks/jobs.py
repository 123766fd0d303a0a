"""The jobs: nitroc and the hand-written loop on the same data, and the program alone below them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import handwritten
import handwritten_lm
from alternating import Side, Standing, Turns
from handwritten import SEED, HandWritten, Written

import nitroc as nt
from nitro_runtime import pjrt
from nitro_runtime.evaluation import place_context
from nitroc.sources import load

ENDLESS = 10**6
"""Epochs: a side is closed before."""

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """An experiment's file under the repository, and the same training by hand.

    `steps`: batches of an epoch that are trained on. `epochs`, `quick`: how many are timed.
    """

    file: str
    by_hand: Callable[[], Written]
    steps: int
    epochs: int
    quick: int

    def experiment(self, **fields: Any) -> nt.Experiment:
        """The experiment, with `fields` set."""
        return load(str(HERE.parent / self.file)).cls(**fields)


JOBS: Mapping[str, Job] = {
    "digits": Job("examples/digits/exp.py", handwritten.digits, 40, 400, 80),
    "cnn": Job("examples/digits_cnn/exp.py", handwritten.cnn, 36, 200, 40),
    "char_lm": Job("examples/char_lm/exp.py", handwritten_lm.char_lm, 5, 30, 8),
    "leaves100": Job("benchmarks/leaves.py", handwritten.leaves100, 20, 200, 40),
}


def by_hand(trainer: HandWritten, source: Any, steps: int) -> Side:
    """The hand-written loop, an epoch a call, shuffled as nitroc's epochs are."""
    epochs = itertools.count(1)

    def epoch() -> None:
        plan = source.begin_epoch(next(epochs), SEED)
        trainer.epoch(source.batch_at(i, plan) for i in range(steps))

    return epoch


def trained(
    experiment: nt.Experiment, source: Any, steps: int, directory: Path, **options: Any
) -> Standing:
    """nitroc training on the first `steps` batches of `source`, an epoch a call."""
    return Standing(
        lambda turn: handle(
            experiment, Turns(source, steps, turn), directory, max_epochs=ENDLESS, **options
        ).train()
    )


def handle(experiment: nt.Experiment, source: Any, directory: Path, **options: Any) -> nt.Nitro:
    """A run on `source` without validation and checkpoints; without a log unless one is given."""
    kept = {"logger": None, "checkpointer": None, "quiet": True, **options}
    return nt.Nitro(experiment, data={"train": source}, run_dir=directory, seed=SEED, **kept)


def bare(experiment: nt.Experiment, source: Any, steps: int, directory: Path) -> Side:
    """The floor: the train executable, `steps` times, on inputs that are already on the device."""
    run = handle(experiment, Turns(source, steps), directory, max_steps=1).train()._made()._run
    program = run.machine.program("train_step")
    batch = source.batch_at(0, source.begin_epoch(1, SEED))
    given = {
        arg.name: run.machine.put(batch[arg.name.removeprefix("batch.")][None, None], arg)
        for arg in program.entry.args
        if arg.role == "batch"
    }
    given.update(place_context(run.machine, program, run.scalars, {}))

    def epoch() -> None:
        results: list[Any] = []
        for _ in range(steps):
            results = run.machine.call(program, given)
        pjrt.read(results[-1])

    return epoch


class Losses:
    """A logger that keeps the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def log_params(self, params: Any, **_: Any) -> None:
        """Nothing of it is kept."""

    def log_metrics(self, metrics: Any, *, context: str, **_: Any) -> None:
        if context == "train":
            self.losses.append(metrics["loss"])

    def log_other(self, key: str, value: Any, **_: Any) -> None:
        """Nothing of it is kept."""

    def finish(self, status: str, **_: Any) -> None:
        """Nothing is open."""


def losses(experiment: nt.Experiment, source: Any, steps: int, directory: Path) -> list[float]:
    """nitroc's first losses."""
    log = Losses()
    handle(experiment, source, directory, max_steps=steps, logger=log).train()
    return log.losses


def first_losses(trainer: HandWritten, source: Any, steps: int) -> list[float]:
    """The losses of a fresh hand-written loop on the batches nitroc takes first."""
    plan = source.begin_epoch(1, SEED)
    return trainer.epoch(source.batch_at(i, plan) for i in range(steps))


def disagreement(nitroc: list[float], by_hand: list[float]) -> float:
    """The largest relative difference of two lists of losses, infinite when one is no number."""
    pairs = list(zip(nitroc, by_hand, strict=True))
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in pairs)
