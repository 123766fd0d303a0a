"""What is compared: each job with the hand-written loop, and nitroc with itself."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jobs
import peers
from alternating import Side, Standing, alternate
from handwritten import HandWritten
from jobs import JOBS

import nitroc as nt
from nitroc.building import build_files
from nitroc.frontend.setup import prepare
from nitroc.lowering import Target

OWN = ("nitroc", "nitro_dialect", "nitro_runtime")
CHECKED = 5
"""Steps whose losses are compared before anything is timed."""
AGREE = 1e-4
"""The relative difference up to which losses of two sides are those of one computation."""

Figures = dict[str, float]


def job(name: str, quick: bool) -> Figures:
    """Microseconds per step of each side, and ratios of their medians.

    RuntimeError when the sides do not compute the same losses.
    """
    chosen = JOBS[name]
    experiment = chosen.experiment()
    source = experiment.build_data()["train"]
    with tempfile.TemporaryDirectory() as text, closing() as close:
        directory = Path(text)
        found = jobs.losses(experiment, source, CHECKED, directory / "checked")
        sides: dict[str, Side] = {}
        if not quick:
            sides["logged"] = close(
                jobs.trained(
                    experiment, source, chosen.steps, directory / "l", logger=nt.JSONLogger()
                )
            )
        sides["bare"] = jobs.bare(experiment, source, chosen.steps, directory / "bare")
        sides["nitroc"] = close(jobs.trained(experiment, source, chosen.steps, directory / "n"))
        # Last: whoever traces clears jax's caches, and the hand-written step lives there.
        trainer = HandWritten(chosen.by_hand())
        agree(name, found, jobs.first_losses(trainer, source, CHECKED))
        sides["jax"] = jobs.by_hand(trainer, source, chosen.steps)
        step = per_step(sides, chosen.quick if quick else chosen.epochs, chosen.steps)
    ratios = {"vs_jax": step["nitroc"] / step["jax"], "vs_bare": step["nitroc"] / step["bare"]}
    if not quick:
        ratios["vs_jax_logged"] = step["logged"] / step["jax"]
    if name == "digits":
        ratios["build_own_share"] = build_own_share(experiment)
    return {**{f"{side}_us": value for side, value in step.items()}, **ratios}


def agree(name: str, nitroc: list[float], by_hand: list[float]) -> None:
    """RuntimeError when two sides do not compute the same losses."""
    found = jobs.disagreement(nitroc, by_hand)
    if not found <= AGREE:
        raise RuntimeError(
            f"{name}: the losses differ by {found:.1e} of their size, so that nothing is compared; "
            f"nitroc {nitroc}, by hand {by_hand}"
        )


def per_step(sides: Mapping[str, Side], epochs: int, steps: int) -> Figures:
    """Median microseconds per step of each side."""
    times = alternate(sides, epochs)
    return {name: statistics.median(values) / steps * 1e6 for name, values in times.items()}


@contextmanager
def closing() -> Generator[Callable[[Standing], Standing]]:
    """Ends the loops it is given when the block is left."""
    opened: list[Standing] = []

    def close(side: Standing) -> Standing:
        opened.append(side)
        return side

    try:
        yield close
    finally:
        for side in opened:
            side.close()


def accum_cnn(quick: bool) -> Figures:
    """Four micro-batches of 32 rows and one batch of 128, per optimizer step.

    Batch statistics are those of 32 rows on one side and of 128 on the other: only time compares.
    """
    chosen = JOBS["cnn"]
    steps = chosen.steps // 4
    with tempfile.TemporaryDirectory() as text, closing() as close:
        sides: dict[str, Side] = {}
        for name, rows, accum in (("accum", 32, 4), ("merged", 128, 1)):
            experiment = chosen.experiment(batch_size=rows)
            sides[name] = close(
                jobs.trained(
                    experiment,
                    experiment.build_data()["train"],
                    steps * accum,
                    Path(text) / name,
                    accum=accum,
                )
            )
        step = per_step(sides, chosen.quick if quick else chosen.epochs, steps)
    return {**_named(step), "accum_cnn": step["accum"] / step["merged"]}


def guards_lm(quick: bool) -> Figures:
    """The transformer with eight guards over its activations, and without them."""
    from guarded import GuardedLM

    chosen = JOBS["char_lm"]
    with tempfile.TemporaryDirectory() as text, closing() as close:
        sides: dict[str, Side] = {}
        for name in ("guarded", "unguarded"):
            experiment = GuardedLM(guards=name == "guarded")
            source = experiment.build_data()["train"]
            sides[name] = close(jobs.trained(experiment, source, chosen.steps, Path(text) / name))
        step = per_step(sides, chosen.quick if quick else chosen.epochs, chosen.steps)
    return {**_named(step), "guards_lm": step["guarded"] / step["unguarded"]}


def beside_peers(name: str, quick: bool) -> dict[str, float | str]:
    """nitroc beside Keras 3 and Lightning on the job `name`; a peer may be `not installed`.

    Each peer alternates with nitroc alone: the threads of one are no burden to another.
    """
    chosen = JOBS[name]
    experiment = chosen.experiment()
    source = experiment.build_data()["train"]
    found: dict[str, float | str] = {}
    for peer, train in peers.PEERS.items():
        if not peers.installed(peer):
            found[f"vs_{peer}"] = "not installed"
            continue
        with tempfile.TemporaryDirectory() as text, closing() as close:
            nitroc = close(jobs.trained(experiment, source, chosen.steps, Path(text)))
            other = close(Standing(train(name, source, chosen.steps)))
            step = per_step({"nitroc": nitroc, peer: other}, chosen.quick, chosen.steps)
        found[f"{peer}_us"] = step[peer]
        found[f"vs_{peer}"] = step["nitroc"] / step[peer]
    return found


def _named(step: Mapping[str, float]) -> Figures:
    return {f"{side}_us": value for side, value in step.items()}


def build_own_share(experiment: nt.Experiment) -> float:
    """The part of a build's time spent in our packages, and in C called straight from them.

    Tracing, lowering and compiling are jax's and XLA's part.
    """
    profile = cProfile.Profile()
    setup = prepare(experiment, {}, {})
    nt.cache_reset()
    profile.runcall(build_files, setup, Target())
    stats: Any = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    own = total = 0.0
    for (file, _, _), (_, _, spent, _, callers) in stats.items():
        total += spent
        if _is_own(file):
            own += spent
        elif file == "~":
            own += sum(row[2] for (caller, _, _), row in callers.items() if _is_own(caller))
    return own / total


def _is_own(file: str) -> bool:
    return "site-packages" not in file and any(f"/{package}/" in file for package in OWN)
