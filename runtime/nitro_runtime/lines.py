"""The train lines of the log, and how long the loop waited for data."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from nitro_runtime.errors import UsageError
from nitro_runtime.metrics import LINE_KEYS
from nitro_runtime.report_words import Value
from nitro_runtime.run import Run
from nitro_runtime.training import Flight, TrainProgram

_METRIC = "metric/"

OWN_KEYS = (*sorted(LINE_KEYS), "learning_rate", "grad_norm", "skipped")


class StepLines:
    """One line at step 1, at each multiple of `log_every`, and always at the last step and at those
    that are sampled.

    E-USAGE-069 for a mark whose series would be mistaken for another value of a line.
    """

    def __init__(self, run: Run, program: TrainProgram, sampled: TrainProgram | None) -> None:
        self._run = run
        self._every = run.options.log_every
        words = program.read_report.names
        self._names = _metric_names(words)
        for each in filter(None, (program, sampled)):
            check_names(each.marks.metric_names(), [*OWN_KEYS, *self._names])
        # Without a logger a line still says which train metrics had no data.
        self._logged = bool(run.loggers) or bool(self._names)
        self._clips = "grad_norm" in words
        self._unlogged: tuple[Flight, Mapping[str, Value]] | None = None
        self._told: set[str] = set()

    def log(self, flight: Flight, values: Mapping[str, Value]) -> None:
        """Writes the line of a step when it is due, and keeps it for `write_last` otherwise."""
        if not self._logged:
            return
        step = flight.step
        due = step == 1 or step % self._every == 0 or step == self._run.total
        if due or flight.program.selection is not None:
            self.write(flight, values)
        else:
            self._unlogged = (flight, values)

    def write(self, flight: Flight, values: Mapping[str, Value]) -> None:
        """Writes the line of a step; none before it is owed any more."""
        self._unlogged = None
        self._run.loggers.metrics(
            self._line(flight, values),
            step=flight.step,
            epoch=flight.epoch,
            context="train",
            series=flight.program.marks.series(values),
        )

    def write_last(self) -> None:
        """Writes the last step's line, unless it has one."""
        if self._unlogged is not None:
            self.write(*self._unlogged)

    def _line(self, flight: Flight, values: Mapping[str, Value]) -> dict[str, float]:
        line = {"loss": float(values["loss"])}
        for name in self._names:
            count = float(values[f"{_METRIC}{name}.count"])
            if count:
                line[name] = float(values[f"{_METRIC}{name}.sum"]) / count
            elif name not in self._told:
                self._told.add(name)
                self._run.say(f"train: {name}: no data at step {flight.step}")
        if flight.learning_rate is not None:
            line["learning_rate"] = float(flight.learning_rate)
        if self._clips:
            line["grad_norm"] = float(values["grad_norm"])
        return line


class Waits:
    """How much of an epoch the loop waited for data; the first step is left out."""

    def __init__(self) -> None:
        self.total = 0.0
        self._waited = 0.0
        self._from = 0.0
        self._steps = 0
        self._first = 0.0
        self._waiting = False

    def start(self) -> None:
        if not self._waiting:
            self._from = time.perf_counter()
            self._waiting = True

    def stop(self) -> None:
        now = time.perf_counter()
        self._waiting = False
        self._steps += 1
        if self._steps == 1:
            self._first = now
            return
        self._waited += now - self._from
        self.total = now - self._first

    def fraction(self) -> float | None:
        """Waiting over all time; None before the second step."""
        return self._waited / self.total if self.total > 0 else None


def _metric_names(words: tuple[str, ...]) -> list[str]:
    """The train metrics of a report."""
    return [
        word.removeprefix(_METRIC).removesuffix(".count")
        for word in words
        if word.startswith(_METRIC) and word.endswith(".count")
    ]


def check_names(marks: Iterable[str], taken: Collection[str]) -> None:
    """E-USAGE-069 for a series of a mark called as one of `taken`."""
    for name in marks:
        if name in taken:
            raise UsageError(
                69,
                f"the mark {name!r} has the name of another value of the log",
                where=f"metric {name}",
                help=f"give it another name, or metadata: nt.metric({name!r}, ..., part=...)",
            )
