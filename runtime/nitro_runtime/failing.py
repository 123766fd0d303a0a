"""What ends a training run as failed: a step's guards, a pass's guards, a metric that decides."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from nitro_runtime import pjrt, replay
from nitro_runtime.errors import GuardError, GuardFinding
from nitro_runtime.machine import field_of
from nitro_runtime.run import Run
from nitro_runtime.state import HALTED
from nitro_runtime.totals import Passed
from nitro_runtime.training import Flight
from nitro_runtime.verdict import Cause, Pass, Standing, last, pass_error, step_error


def fail_step(run: Run, flight: Flight, found: Sequence[Cause]) -> NoReturn:
    """Raises the error of a step that failed, after an annotation per guard; what it takes to run
    the step again is kept in the run directory."""
    for cause in found:
        _annotate(run, cause.finding, flight.step, flight.epoch, found=cause.found)
    error = step_error(found, flight, Standing(None, _checkpoint(run)))
    if isinstance(error, GuardError):
        error = step_error(found, flight, Standing(_keep(run, flight, error), _checkpoint(run)))
    flight.drop()
    raise error


def stop_after(run: Run, made: Passed | None, epoch: int) -> None:
    """E-GUARD-001 when a guard counted in the pass that ended, after an annotation per guard."""
    if made is None or not made.counted:
        return
    for counted in made.counted:
        _annotate(run, counted.finding, run.step, epoch)
    help = f"no checkpoint of epoch {epoch} was written; {last(_checkpoint(run))}"
    raise pass_error(made.counted, Pass(made.split, run.step, epoch, made.values), help)


def check_finite(run: Run, metrics: Mapping[str, float], told: set[str]) -> None:
    """E-GUARD-003 for a metric that decides and is not finite; where it is ignored, that is said
    once (`told`)."""
    bad = [n for n in run.control_metrics() if not math.isfinite(metrics.get(n, 0.0))]
    if not bad:
        return
    what = f"{bad[0]} was {metrics[bad[0]]} in epoch {run.epochs}"
    if run.options.on_nonfinite_metric == "ignore":
        if bad[0] not in told:
            told.add(bad[0])
            run.say(f"{what}: it neither ranks a checkpoint nor counts as an improvement")
        return
    error = GuardError(
        3,
        f"{what}, and it ranks checkpoints or stops the run",
        where=f"step {run.step}",
        help="on_nonfinite_metric=ignore goes on; no checkpoint of this epoch was written",
    )
    error.name, error.step, error.epoch, error.stage = bad[0], run.step, run.epochs, "evaluate"
    error.split, error.metrics = "val", dict(metrics)
    raise error


def _checkpoint(run: Run) -> str | None:
    return None if run.last_checkpoint is None else run.last_checkpoint[0]


def _annotate(
    run: Run, finding: GuardFinding, step: int, epoch: int, *, found: str | None = None
) -> None:
    """Says in the log that a guard counted; of the finite guard, what was not finite."""
    more = {} if found is None else {"found": found}
    run.loggers.annotation(
        f"guard {finding.name} failed",
        step=step,
        epoch=epoch,
        data={**dataclasses.asdict(finding), **more},
    )


def _keep(run: Run, flight: Flight, error: GuardError) -> str | None:
    """Writes the replay of a step that was not committed: the device still holds the state before
    it. Gives its path, or None when it can't be written, which is said."""
    try:
        return _shown(replay.write(run.directory.path, _replay(run, flight, error)))
    except Exception as problem:
        # Whatever kept it from being written must not hide the guard that failed.
        run.say(f"the replay of step {flight.step} can't be written: {problem}")
        return None


def _replay(run: Run, flight: Flight, error: GuardError) -> replay.Replay:
    machine, program = run.machine, flight.program
    state = machine.arrays()
    state.pop(f"slot/{HALTED}", None)
    state.update((f"device/{name}", value) for name, value in machine.device_values.items())
    entry = machine.bundle.program(program.name)
    batch = {
        field_of(arg): pjrt.read(flight.fields[arg.name])
        for arg in entry.args
        if arg.name in flight.fields
    }
    record = {
        "run_id": run.run_id,
        "bundle": machine.manifest.digest,
        "program": program.name,
        "step": flight.step,
        "epoch": flight.epoch,
        "seed": run.seed,
        "scalars": {**run.scalars.values, **flight.scheduled},
        "mask": None if program.selection is None else program.selection.mask.tolist(),
        "error": replay.described(error),
    }
    return replay.Replay(state, batch, record)


def _shown(path: Path) -> str:
    """As a person would write it: relative to where they are, when it is below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
