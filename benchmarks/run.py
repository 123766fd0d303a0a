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
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "examples" / "digits")]

import numpy as np  # noqa: E402
from exp import Digits  # noqa: E402
from handwritten import HandWritten  # noqa: E402

import nitroc as nt  # noqa: E402
from nitro_runtime import pjrt  # noqa: E402
from nitro_runtime.engine import Engine  # noqa: E402
from nitroc.building import build_files  # noqa: E402
from nitroc.frontend.setup import prepare  # noqa: E402
from nitroc.lowering import Target  # noqa: E402

OWN = ("nitroc", "nitro_dialect", "nitro_runtime")
STEPS_PER_EPOCH = 40


def digits(rounds: int, epochs: int) -> dict[str, float]:
    """Microseconds per step of each side, and the ratios of their medians."""
    experiment = Digits()
    train = experiment.build_data()["train"]
    with tempfile.TemporaryDirectory() as directory:
        sides = _sides(experiment, train, epochs, directory)
        for side in sides.values():
            side()
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                times[name].append(side() / (epochs * STEPS_PER_EPOCH) * 1e6)
    step = {name: statistics.median(values) for name, values in times.items()}
    return {
        **{f"{name}_us": value for name, value in step.items()},
        "vs_jax": step["nitroc"] / step["jax"],
        "vs_jax_logged": step["nitroc_logged"] / step["jax"],
        "vs_bare": step["nitroc"] / step["bare"],
    }


def _sides(
    experiment: Digits, train: Any, epochs: int, directory: str
) -> dict[str, Callable[[], float]]:
    """Each runs `epochs` epochs from fresh values and returns the seconds of its loop."""

    def trained(**options: Any) -> float:
        nitro = nt.Nitro(
            experiment,
            data={"train": train},
            max_epochs=epochs,
            run_dir=Path(directory) / "run",
            checkpointer=None,
            quiet=True,
            **options,
        )
        nitro.predict({"image": np.zeros((1, 64), np.float32)})
        return _timed(nitro.train)

    hand = HandWritten(nt.Nitro(experiment).parameters, 0.05, 2e-3, 1e-3)
    arrays = train.begin_epoch(1, 42)

    def by_hand() -> float:
        def batches() -> Any:
            return (train.batch_at(i, arrays) for i in range(STEPS_PER_EPOCH))

        return _timed(lambda: [hand.epoch(batches()) for _ in range(epochs)])

    return {
        "jax": by_hand,
        "nitroc": lambda: trained(logger=None),
        "nitroc_logged": trained,
        "bare": _bare(experiment, train, epochs, directory),
    }


def _bare(experiment: Digits, train: Any, epochs: int, directory: str) -> Callable[[], float]:
    """The floor: the train executable on inputs that are already on the device."""
    nitro = nt.Nitro(
        experiment,
        data={"train": train},
        run_dir=Path(directory) / "bare",
        checkpointer=None,
        logger=None,
        quiet=True,
    )
    nitro.train()
    engine: Engine = nitro._made()
    machine = engine._run.machine
    program = machine.program("train_step")
    batch = train.batch_at(0, train.begin_epoch(1, 42))
    entries = {arg.name: arg for arg in program.entry.args}
    given = {
        name: machine.put(batch[name.removeprefix("batch.")][None, None], arg)
        for name, arg in entries.items()
        if arg.role == "batch"
    }
    given["scalars"] = machine.put_scalars(program, engine._run.scalars)

    def run() -> float:
        def loop() -> None:
            for _ in range(epochs * STEPS_PER_EPOCH):
                results = machine.call(program, given)
            pjrt.read(results[program.result("report")])

        return _timed(loop)

    return run


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds, epochs = (5, 25) if options.quick else (11, 100)
    found = digits(rounds, epochs)
    if options.json:
        ratios = {k: round(v, 4) for k, v in found.items() if not k.endswith("_us")}
        print(json.dumps({options.job: ratios}))
        return
    for name, value in found.items():
        print(f"{name:16s} {value:8.2f}")


if __name__ == "__main__":
    main()
