"""A failed step, run again by the program that made it: what it says here of that step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.compiling import compiler
from nitro_runtime.diagnostics import Selection
from nitro_runtime.errors import RunError
from nitro_runtime.host import NoHost
from nitro_runtime.machine import DEVICE, SAMPLED, Machine, batch_args
from nitro_runtime.manifest import Manifest
from nitro_runtime.replay import Replay
from nitro_runtime.report_words import Value
from nitro_runtime.scalars import Scalars
from nitro_runtime.training import TrainProgram
from nitro_runtime.verdict import FINITE, Cause, causes


@dataclass(frozen=True)
class Again:
    """`values`: the report. `causes`: why the step was not committed; none when it was."""

    values: Mapping[str, Value]
    causes: tuple[Cause, ...]

    @property
    def finite(self) -> bool:
        """Whether the step was committed, its loss being a number."""
        return not self.causes and math.isfinite(self.values["loss"])

    def lost(self, manifest: Manifest) -> bool:
        """Whether a value that is not finite is what stops the step, or comes out of it."""
        tested = {e.name for e in manifest.guards.placed.values() if e.kind == "finite"}
        stopping = any(c.code == FINITE or c.finding.name in tested for c in self.causes)
        return stopping or not math.isfinite(self.values["loss"])


def check_bundle(bundle: Bundle, replay: Replay) -> None:
    """E-RUN-009 when another bundle made the step."""
    made_by = str(replay.record["bundle"])
    if made_by != bundle.digest:
        raise RunError(
            9,
            f"the step was made by the bundle {made_by}, this one is {bundle.digest}",
            where=None if bundle.path is None else str(bundle.path),
            help="give the bundle that the run was trained with; bundle.json in the run directory "
            "says where it was",
        )


def rerun(bundle: Bundle, replay: Replay, device: pjrt.Device, say: Callable[[str], None]) -> Again:
    """Runs the step of `replay`, which is of `bundle`, on `device`. Nothing is written."""
    record = replay.record
    host = NoHost(values=record["scalars"], device_arrays=device_arrays(replay))
    machine = Machine(bundle, device, host, compiler(bundle, device, host, say))
    machine.seed(record["seed"])
    machine.load(replay.state)
    entry = bundle.program(record["program"])
    scalars = Scalars(entry.scalars, record["scalars"], {})
    program = TrainProgram(machine, scalars, selection(bundle.manifest, replay))
    fields = machine.put_fields(batch_args(entry), replay.batch)
    flight = program.dispatch(record["step"], record["epoch"], fields)
    values = program.settle(flight)
    return Again(values, tuple(causes(values, flight, bundle.manifest)))


def selection(manifest: Manifest, replay: Replay) -> Selection | None:
    """The diagnostics that the sampled program ran; None for the plain one."""
    if replay.record["program"] != SAMPLED:
        return None
    mask = np.array(replay.record["mask"], np.bool_)
    keys = [k for k, entry in manifest.guards.placed.items() if entry.kind == "diagnostic"]
    chosen = tuple(key for key, taken in zip(keys, mask, strict=True) if taken)
    return Selection(chosen, mask)


def device_arrays(replay: Replay) -> dict[str, np.ndarray]:
    """The array Device values of the step, by leaf."""
    return {
        name.removeprefix(DEVICE): array
        for name, array in replay.state.items()
        if name.startswith(DEVICE)
    }
