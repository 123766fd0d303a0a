"""What the batches of a pass add up to: reports read late, host metrics, marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nitro_runtime import pjrt
from nitro_runtime.errors import DataError
from nitro_runtime.machine import Program
from nitro_runtime.manifest import Manifest, ProgramEntry, word_of_mark
from nitro_runtime.marks import Counted, PassMarks, ReportMarks, Series
from nitro_runtime.metrics import LINE_KEYS, Accumulator
from nitro_runtime.pjrt import DeviceArray
from nitro_runtime.places import Found
from nitro_runtime.report_words import ReportReader, Value


class Report:
    """How a program's report is read: its metrics, and its marks."""

    def __init__(self, manifest: Manifest, entry: ProgramEntry) -> None:
        self.read = ReportReader(entry.report)
        self.marks = ReportMarks(manifest, self.read.names)
        self.words = [name for name in self.read.names if word_of_mark(name) is None]


@dataclass
class Call:
    """A program that was asked; reading its results waits for the device."""

    program: Program
    report: Report
    results: list[DeviceArray]

    def values(self) -> dict[str, Value]:
        """The values of its report; none where it has no report."""
        index = self.program.result("report")
        return {} if index is None else self.report.read(pjrt.read(self.results[index]))


@dataclass
class Pending:
    """What a batch of `rows` real rows was asked, and what marks of host metrics found."""

    rows: int
    forward: Call
    reduce: Call | None
    found: list[Found] = field(default_factory=list[Found])


class Totals:
    """The metrics of a pass over `split`: those of programs, of the host's hook, and of marks."""

    def __init__(self, split: str) -> None:
        self.split = split
        self.device = Accumulator(split)
        self.host = Accumulator(split)
        self.marks = PassMarks(split)

    def add(self, batch: Pending) -> None:
        """Adds a batch, waiting for its reports."""
        calls = [call for call in (batch.forward, batch.reduce) if call is not None]
        read = [(call, call.values()) for call in calls]
        marked = [(call.report.marks, values) for call, values in read if call.report.marks]
        self.marks.add(batch.rows, marked, batch.found)
        if batch.reduce is not None:
            self._add_metrics(*read[-1])

    def _add_metrics(self, call: Call, values: Mapping[str, Value]) -> None:
        self.device.add_words({name: values[name] for name in call.report.words})
        for entry, array in zip(call.program.entry.results, call.results, strict=True):
            if entry.role == "outputs":
                name = entry.name.removeprefix("outputs.").removeprefix("metric.")
                self.device.add_rows(name.removesuffix(".concat"), pjrt.read(array))

    def reduced(self) -> tuple[dict[str, Any], list[str]]:
        """The values of hooks by name, and the names that had no data; a host metric called
        `val_loss` stands for ours."""
        values, empty = self.device.reduced()
        own, own_empty = self.host.reduced()
        if "val_loss" in own or "val_loss" in own_empty:
            values.pop("val_loss", None)
        return {**values, **own}, [*empty, *own_empty]


@dataclass(frozen=True)
class Passed:
    """What a pass came to: `hooks` are the values of hooks, `metrics` and `guards` the points of
    marks, `counted` the guards that counted."""

    split: str
    hooks: dict[str, Any]
    metrics: list[Series]
    guards: list[Series]
    counted: list[Counted]

    @property
    def values(self) -> dict[str, Any]:
        """All metrics by name; those of marks with their metadata in braces."""
        return {**self.hooks, **{point.key: point.value for point in self.metrics}}


def passed(totals: Totals, hooks: dict[str, Any]) -> Passed:
    """The result of a pass; E-DATA-069 for a mark called as a metric of a hook."""
    marks = totals.marks
    made = Passed(totals.split, hooks, marks.metrics(), marks.guards(), marks.counted())
    for point in made.metrics:
        if point.key in hooks or point.key in LINE_KEYS:
            other = "another metric" if point.key in hooks else "the log's own"
            raise DataError(
                69,
                f"split {totals.split}: the mark {point.key!r} has a name of {other}",
                where=f"metric {point.key}",
                help="give the mark another name, or metadata",
                step_found=True,
            )
    return made
