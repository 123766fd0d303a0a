"""The training loop.

for each epoch: dispatches, each report read one dispatch late -> validate -> ask the stopper
-> checkpoint -> go on or stop
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

from nitro_runtime import pjrt
from nitro_runtime.data import open_epoch
from nitro_runtime.data.prefetch import depth_of
from nitro_runtime.failing import check_finite, fail_step, stop_after
from nitro_runtime.lines import StepLines, Waits
from nitro_runtime.pjrt import DeviceArray
from nitro_runtime.places import current
from nitro_runtime.report_words import Value
from nitro_runtime.run import Run, scalars_of
from nitro_runtime.saving import snapshot
from nitro_runtime.signals import Interrupts
from nitro_runtime.totals import Passed
from nitro_runtime.training import SPLIT, EpochSums, Flight, TrainProgram, TrainStager
from nitro_runtime.verdict import Cause, causes

IN_FLIGHT = 2
SLOW_DATA = 0.25


class Loop:
    """Trains `run` on its train split until something stops it."""

    def __init__(
        self, run: Run, program: TrainProgram, sampled: TrainProgram | None, interrupts: Interrupts
    ) -> None:
        self._run = run
        self._program = program
        self._sampled = sampled
        self._interrupts = interrupts
        self._source = run.host.splits[SPLIT]
        self._flights: deque[Flight] = deque()
        self._committed = run.scalars.scheduled()
        self._dispatched = run.step
        self._position = run.position
        self._lines = StepLines(run, program, sampled)
        self._told: set[str] = set()

    # ----------------------------------------------------------------------------- the run

    def train(self) -> str:
        """Runs to the end and gives the stop reason; a failing step or hook raises."""
        run = self._run
        if run.options.max_epochs == 0:
            stop_after(run, self._validate(run.epochs), run.epochs)
            return "completed"
        run.display.start(run.options.max_epochs, run.total)
        while run.epochs < run.options.max_epochs:
            stopped = self._epoch(run.epochs + 1)
            if stopped is not None:
                self._leave_mid_epoch(stopped)
                return stopped
            stopped = self._finish_epoch()
            if stopped is not None:
                return stopped
        return "completed"

    def _asked_to_stop(self) -> str | None:
        run = self._run
        if self._interrupts.caught is not None:
            return "interrupted"
        if run.requested:
            return "requested"
        limit = run.options.max_steps
        if limit is not None and self._dispatched >= limit:
            return "max_steps"
        seconds = run.options.seconds
        if seconds is not None and time.monotonic() - run.started >= seconds:
            return "max_time"
        return None

    # --------------------------------------------------------------------------- an epoch

    def _epoch(self, epoch: int) -> str | None:
        """The steps of an epoch; the stop reason when it was left before its end."""
        run = self._run
        self._began = time.monotonic()
        waits = Waits()
        stager = TrainStager(run.machine, self._source)
        stopped: str | None = None
        with open_epoch(
            self._source,
            epoch,
            run.seed,
            prepare=stager.stage,
            split=SPLIT,
            depth=depth_of(self._source) * self._program.accum,
            start=self._position,
            poll=self._poll,
        ) as batches:
            try:
                while stopped is None:
                    waits.start()
                    fields = next(batches, _END)
                    if fields is _END:
                        break
                    if fields is None:
                        continue
                    waits.stop()
                    stopped = self._asked_to_stop()
                    if stopped is None:
                        self._step(epoch, fields)
                    else:
                        _drop(fields)
            except _NotWaiting:
                stopped = "interrupted"
            except Exception:
                # What a source, a schedule or a batch raised stands; the steps dispatched before
                # it are still accounted for. After a step that failed there are none.
                self._drain()
                self._lines.write_last()
                raise
        self._drain()
        self._report_waits(waits, epoch)
        return stopped

    def _poll(self) -> None:
        """While a train batch is waited for: a signal need not wait for it."""
        self._tick()
        if self._interrupts.caught is not None:
            raise _NotWaiting

    def _tick(self) -> None:
        if self._run.directory.due():
            self._run.directory.status(**self._where())
            _forget_dropped()

    def _step(self, epoch: int, fields: dict[str, DeviceArray]) -> None:
        run = self._run
        # As late as can be: the report of the dispatch before the last one is then long there.
        while len(self._flights) >= IN_FLIGHT:
            self._settle(self._flights.popleft())
        step = self._dispatched + 1
        if run.scalars.schedules:
            for warning in run.scalars.advance(step):
                run.say(warning)
        program = self._program
        if self._sampled is not None and step % run.options.sample_every == 0:
            program = self._sampled
        self._flights.append(program.dispatch(step, epoch, fields))
        self._dispatched = step

    def _drain(self) -> None:
        while self._flights:
            self._settle(self._flights.popleft())

    def _settle(self, flight: Flight) -> None:
        """Reads a dispatch's report: the step stands, or the run fails."""
        run = self._run
        values = flight.program.settle(flight)
        found = causes(values, flight, run.machine.manifest)
        if found:
            self._fail(flight, values, found)
        flight.drop()
        run.step = flight.step
        run.t += 1
        self._position += flight.batches
        run.position = self._position
        self._committed = flight.scheduled
        loss = float(values["loss"])
        run.sums.add(loss)
        self._lines.log(flight, values)
        run.display.step(flight.epoch, flight.step, loss)
        self._tick()

    def _fail(self, flight: Flight, values: Mapping[str, Value], found: list[Cause]) -> NoReturn:
        run = self._run
        for later in self._flights:
            pjrt.wait([later.report])
            later.drop()
        self._flights.clear()
        run.scalars.restore(self._committed)
        self._lines.write(flight, values)
        fail_step(run, flight, found)

    def _report_waits(self, waits: Waits, epoch: int) -> None:
        run = self._run
        fraction = waits.fraction()
        if fraction is None:
            return
        run.loggers.metrics(
            {"data_wait_frac": fraction}, step=run.step, epoch=epoch, context="data"
        )
        if fraction >= SLOW_DATA and waits.total > 1.0 and "data" not in self._told:
            self._told.add("data")
            run.say(
                f"the device waits for data {fraction:.0%} of the time: make the source cheaper, "
                "or prepare its batches once"
            )

    # ---------------------------------------------------------------------------- epoch end

    def _finish_epoch(self) -> str | None:
        """Validation, stopper, checkpoint; the stop reason when the run is over."""
        run = self._run
        run.epochs += 1
        self._position = run.position = 0
        made = self._validate(run.epochs)
        metrics = {} if made is None else scalars_of(made.values)
        row = self._add_row(metrics)
        stop_after(run, made, run.epochs)
        check_finite(run, metrics, self._told)
        stop = self._stopper_says(metrics)
        reason = "early_stop" if stop else None
        if run.epochs >= run.options.max_epochs:
            reason = reason or "completed"
        reason = reason or self._asked_to_stop()
        self._checkpoint(metrics)
        if reason is not None:
            self._lines.write_last()
        run.display.epoch(row, time.monotonic() - self._began)
        self._tick()
        return reason

    def _validate(self, epoch: int, *, partial: bool = False) -> Passed | None:
        run = self._run
        source = run.host.splits.get("val")
        if source is None:
            return None
        made = run.evaluator.run("val", source, seed=run.seed, poll=self._tick)
        run.loggers.metrics(
            scalars_of(made.hooks),
            step=run.step,
            epoch=epoch,
            context="validate",
            series=[*made.metrics, *made.guards],
            partial=partial,
        )
        return made

    def _add_row(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        run = self._run
        row: dict[str, Any] = {"epoch": run.epochs, "step": run.step}
        loss = run.sums.mean()
        if loss is not None:
            row["loss"] = loss
        row.update(metrics)
        run.history.rows.append(row)
        run.sums = EpochSums()
        return row

    def _stopper_says(self, metrics: Mapping[str, float]) -> bool:
        stopper = self._run.stopper
        return stopper is not None and bool(stopper.should_stop(self._run.epochs, dict(metrics)))

    def _checkpoint(self, metrics: Mapping[str, float]) -> None:
        run = self._run
        if run.checkpointer is None:
            return
        name = run.checkpointer.save(run.epochs, dict(metrics), snapshot(run))
        if name is not None:
            run.last_checkpoint = (name, run.step)

    def _leave_mid_epoch(self, reason: str) -> None:
        """Ends inside an epoch: the last epoch's checkpoint stands, and what is lost is said."""
        run = self._run
        self._lines.write_last()
        where = f"inside epoch {run.epoch}" if run.position else f"before epoch {run.epochs + 1}"
        if run.position and reason != "interrupted":
            stop_after(run, self._validate(run.epoch, partial=True), run.epoch)
        name, step = run.last_checkpoint or (None, 0)
        stands = f"the last checkpoint is {name}" if name else "there is no checkpoint yet"
        run.say(
            f"stopped ({reason}) at step {run.step}, {where}: {stands}, "
            f"{run.step - step} steps are not in it"
        )

    def _where(self) -> dict[str, Any]:
        run = self._run
        return {"step": run.step, "t": run.t, "epoch": run.epoch}


_END: Any = object()


class _NotWaiting(Exception):
    """A signal came while the loop waited for a batch."""


def _forget_dropped() -> None:
    """Diagnostics that host code called in vain: a run has no use for them, and there may be one
    per batch."""
    place = current()
    if place is not None:
        place.dropped.clear()


def _drop(fields: Mapping[str, DeviceArray]) -> None:
    for array in fields.values():
        pjrt.delete(array)
