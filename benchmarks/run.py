"""nitroc beside hand-written JAX: alternating in one process, medians, ratios.

python benchmarks/run.py                      # a table
python benchmarks/run.py --job digits --quick --json
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "examples" / "digits")]

from exp import Digits  # noqa: E402
from handwritten import HandWritten  # noqa: E402

import nitroc as nt  # noqa: E402
from nitro_runtime import pjrt  # noqa: E402
from nitro_runtime.evaluation import place_context  # noqa: E402
from nitroc.building import build_files  # noqa: E402
from nitroc.frontend.setup import prepare  # noqa: E402
from nitroc.lowering import Target  # noqa: E402

OWN = ("nitroc", "nitro_dialect", "nitro_runtime")
WARM = 5
"""Epochs at the start that are not counted."""

Times = dict[str, list[float]]


class Alternating:
    """The train split, which runs the other sides' epochs between nitroc's own.

    `begin_epoch` is asked on the training thread, once per epoch: everything from its end to its
    next call is nitroc's epoch, with its logs and its epoch's end.
    """

    def __init__(self, source: Any, name: str, sides: dict[str, Callable[[], Any]]) -> None:
        self.source, self.name, self.sides = source, name, sides
        self.times: Times = defaultdict(list)
        self.started: float | None = None

    def __len__(self) -> int:
        return len(self.source)

    def begin_epoch(self, epoch: int, seed: int) -> Any:
        if epoch > 0 and self.started is not None:
            self.times[self.name].append(time.perf_counter() - self.started)
        if epoch > 0:
            for name, side in self.sides.items():
                start = time.perf_counter()
                side()
                self.times[name].append(time.perf_counter() - start)
        plan = self.source.begin_epoch(epoch, seed)
        self.started = time.perf_counter() if epoch > 0 else None
        return plan

    def batch_at(self, index: int, plan: Any) -> Any:
        return self.source.batch_at(index, plan)


def digits(epochs: int) -> dict[str, float]:
    """Microseconds per step of each side, and the ratios of their medians."""
    experiment = Digits()
    train = experiment.build_data()["train"]
    with tempfile.TemporaryDirectory() as directory:
        bare = _bare(experiment, train, directory)
        plain = _trained(experiment, train, "nitroc", bare, epochs, directory, logger=None)
        logged = _trained(experiment, train, "nitroc_logged", bare, epochs, directory)
    steps = len(train)
    step = {name: statistics.median(values[WARM:]) / steps * 1e6 for name, values in plain.items()}
    beside = {name: statistics.median(values[WARM:]) for name, values in logged.items()}
    return {
        **{f"{name}_us": value for name, value in step.items()},
        "vs_jax": step["nitroc"] / step["jax"],
        "vs_bare": step["nitroc"] / step["bare"],
        "vs_jax_logged": beside["nitroc_logged"] / beside["jax"],
        "build_own_share": build_own_share(experiment),
    }


def _trained(
    experiment: Digits,
    train: Any,
    name: str,
    bare: Callable[[], Any],
    epochs: int,
    directory: str,
    **options: Any,
) -> Times:
    """One run of `epochs` epochs with the other sides' epochs in between."""
    hand = HandWritten(nt.Nitro(experiment).parameters, 0.05, 2e-3, 1e-3)
    plan = train.begin_epoch(1, 42)

    def by_hand() -> Any:
        return hand.epoch(train.batch_at(i, plan) for i in range(len(train)))

    source = Alternating(train, name, {"jax": by_hand, "bare": bare})
    nitro = nt.Nitro(
        experiment,
        data={"train": source},
        max_epochs=epochs + WARM + 1,
        run_dir=Path(directory) / name,
        checkpointer=None,
        quiet=True,
        **options,
    )
    nitro.train()
    return source.times


def _bare(experiment: Digits, train: Any, directory: str) -> Callable[[], Any]:
    """The floor: the train executable on inputs that are already on the device."""
    nitro = nt.Nitro(
        experiment,
        data={"train": train},
        run_dir=Path(directory) / "bare",
        checkpointer=None,
        logger=None,
        quiet=True,
    )
    run = nitro.train()._made()._run
    program = run.machine.program("train_step")
    batch = train.batch_at(0, train.begin_epoch(1, 42))
    given = {
        arg.name: run.machine.put(batch[arg.name.removeprefix("batch.")][None, None], arg)
        for arg in program.entry.args
        if arg.role == "batch"
    }
    given.update(place_context(run.machine, program, run.scalars, {}))

    def epoch() -> None:
        results: list[Any] = []
        for _ in range(len(train)):
            results = run.machine.call(program, given)
        pjrt.read(results[-1])

    return epoch


def build_own_share(experiment: Digits) -> float:
    """The part of a build's time spent in our packages, and in C called straight from them.

    Tracing, lowering and compiling are jax's and XLA's part.
    """
    profile = cProfile.Profile()
    setup = prepare(experiment, {}, {})
    nt.cache_reset()
    profile.runcall(build_files, setup, Target())
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=["digits"], default="digits")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = digits(60 if options.quick else 400)
    if options.json:
        ratios = {k: round(found[k], 4) for k in ("vs_jax", "vs_bare", "build_own_share")}
        print(json.dumps({options.job: ratios}))
        return
    for name, value in found.items():
        print(f"{name:16s} {value:8.2f}")


if __name__ == "__main__":
    main()
