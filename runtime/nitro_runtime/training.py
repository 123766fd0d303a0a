"""One optimizer step: batches to the device, a dispatch, its report read later."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.data.schema import FieldSpec, Schema, conform, row_count
from nitro_runtime.data.source import Batch
from nitro_runtime.diagnostics import Selection
from nitro_runtime.dtypes import np_dtype
from nitro_runtime.errors import DataError
from nitro_runtime.machine import SAMPLED, TRAIN, Machine, batch_args, field_of
from nitro_runtime.marks import ReportMarks
from nitro_runtime.pjrt import DeviceArray
from nitro_runtime.report_words import ReportReader, Value
from nitro_runtime.scalars import Number, Scalars

SPLIT = "train"


class TrainStager:
    """Makes the input of one dispatch from `accum` batches; runs on the reading thread.

    `stage` gives None until the last batch of a step is there.
    """

    def __init__(self, machine: Machine, source: Any) -> None:
        entry = machine.bundle.program(TRAIN)
        self._args = batch_args(entry)
        self._accum = entry.dims.get("accum", 1)
        self._width = entry.dims.get("width", self._args[0].shape[2] if self._args else 0)
        self._schema = Schema(
            {field_of(a): FieldSpec(a.dtype, a.shape[3:], a.dtype) for a in self._args},
            self._width,
            None,
            len(unwrap(source)),
        )
        self._place = {a.name: (field_of(a), pjrt.Placer(a, machine.device)) for a in self._args}
        self._exact = [(field_of(a), np_dtype(a.dtype), a.shape[2:]) for a in self._args]
        self._waiting: list[dict[str, np.ndarray]] = []
        self._index = 0

    def stage(self, batch: Batch) -> dict[str, DeviceArray] | None:
        """The batch fields of a step on the device, by argument name."""
        fields = self._as_given(batch) or self._conformed(batch)
        self._index += 1
        if self._accum > 1:
            self._waiting.append(fields)
            if len(self._waiting) < self._accum:
                return None
            fields, self._waiting = _stacked(self._waiting), []
        return {name: place(fields[field]) for name, (field, place) in self._place.items()}

    def _as_given(self, batch: Batch) -> dict[str, np.ndarray] | None:
        """The fields of a batch that is already what the program takes: most are."""
        found: dict[str, np.ndarray] = {}
        for name, dtype, shape in self._exact:
            value = batch.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                return None
            found[name] = value
        return found

    def _conformed(self, batch: Batch) -> dict[str, np.ndarray]:
        arrays = conform(batch, self._schema, SPLIT, self._index)
        rows = row_count(arrays, SPLIT, self._index) if arrays else self._width
        if rows == self._width:
            return arrays
        raise DataError(
            61,
            f"the batch has {rows} rows, the train program takes {self._width}",
            where=f"split {SPLIT}, batch {self._index}",
            help="drop a short last batch: drop_last=True",
            step_found=True,
        )


def _stacked(micro: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([part[name] for part in micro]) for name in micro[0]}


@dataclass(slots=True)
class Flight:
    """A dispatch whose report has not been read: its step, its inputs, what was scheduled."""

    step: int
    epoch: int
    batches: int
    report: DeviceArray
    fields: dict[str, DeviceArray]
    scheduled: dict[str, Number]
    learning_rate: Number | None
    program: TrainProgram

    def drop(self) -> None:
        """Gives the inputs back."""
        self.fields.clear()  # nothing else holds them


class TrainProgram:
    """A train program, ready to dispatch. The living buffers are the machine's cells.

    With a selection of diagnostics it is the sampled program, its mask placed once.
    """

    def __init__(
        self, machine: Machine, scalars: Scalars, selection: Selection | None = None
    ) -> None:
        program = machine.program(TRAIN if selection is None else SAMPLED)
        self.selection = selection
        if selection is not None:
            (mask,) = (arg for arg in program.entry.args if arg.role == "mask")
            machine.cells[mask.name] = machine.put(selection.mask, mask)
        self._program = program
        self._machine = machine
        self._scalars = scalars
        self._row = next((a for a in program.entry.args if a.role == "scalars"), None)
        self._packed: tuple[int, DeviceArray] | None = None
        report = program.result("report")
        assert report is not None, "a train program reports"
        self._report = report
        self._gather = itemgetter(*program.names)
        self._far = machine.device.platform != "cpu"
        self.accum = program.entry.dims.get("accum", 1)
        self.read_report = ReportReader(program.entry.report)
        selected = () if selection is None else selection.keys
        self.marks = ReportMarks(machine.manifest, self.read_report.names, selected)

    @property
    def name(self) -> str:
        """Its name in the manifest."""
        return self._program.name

    def dispatch(self, step: int, epoch: int, fields: dict[str, DeviceArray]) -> Flight:
        """Enqueues `step`; the scalars are those of now."""
        machine, program = self._machine, self._program
        cells = machine.cells
        if self._row is not None:
            cells[self._row.name] = self._scalar_row()
        cells.update(fields)
        results = program.run(self._gather(cells))
        for name in fields:
            del cells[name]
        for name, index in program.donated:
            cells[name] = results[index]
        report = results[self._report]
        if self._far:
            pjrt.start_read(report)
        scalars = self._scalars
        rate = scalars.values.get("learning_rate")
        return Flight(step, epoch, self.accum, report, fields, scalars.scheduled(), rate, self)

    def _scalar_row(self) -> DeviceArray:
        """The packed scalars on the device, uploaded when a value changed."""
        version = self._scalars.version
        if self._packed is None or self._packed[0] != version:
            assert self._row is not None
            row = self._scalars.pack(self._program.entry.scalars, self._row.shape)
            self._packed = (version, self._machine.put(row, self._row))
        return self._packed[1]

    def settle(self, flight: Flight) -> dict[str, Value]:
        """Waits for a dispatch and gives the values of its report."""
        return self.read_report(pjrt.read(flight.report))


@dataclass
class EpochSums:
    """What the steps of an epoch add up to, in f64."""

    loss: float = 0.0
    steps: int = 0

    def add(self, loss: float) -> None:
        self.loss += loss
        self.steps += 1

    def mean(self) -> float | None:
        """The mean loss over the steps; None without one."""
        return self.loss / self.steps if self.steps else None
