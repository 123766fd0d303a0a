"""Evaluation: forward at a compiled width, sums and counts over the real rows only."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.data import open_epoch
from nitro_runtime.data.source import Batch
from nitro_runtime.errors import DataError
from nitro_runtime.host import HostHooks
from nitro_runtime.machine import Machine, Program
from nitro_runtime.metrics import LINE_KEYS, Accumulator
from nitro_runtime.pjrt import DeviceArray
from nitro_runtime.places import Found, Kind, Place, running
from nitro_runtime.scalars import Scalars
from nitro_runtime.staging import EvalStager, Staged, lacking
from nitro_runtime.totals import Call, Passed, Pending, Report, Totals, passed
from nitro_runtime.trees import TreeSpec, unflatten
from nitro_runtime.widths import Plan, Widths


def split_number(split: str) -> int:
    """The number a split's random keys are folded with: it depends on the name only."""
    return zlib.crc32(split.encode()) & 0x7FFFFFFF


class Evaluator:
    """Runs passes over splits; `metrics` of a pass are the same whenever the state is."""

    def __init__(
        self, machine: Machine, scalars: Scalars, host: HostHooks, say: Callable[[str], None]
    ) -> None:
        self._machine = machine
        self._scalars = scalars
        self._host = host
        self._say = say
        self._widths = Widths(machine.manifest, counted=True)
        self._reports = {
            name: Report(machine.manifest, program)
            for name, program in machine.manifest.programs.items()
            if program.role in ("forward", "reduce")
        }
        self._spec = TreeSpec.from_json(machine.manifest.interface.outputs)

    # ------------------------------------------------------------------------------- a pass

    def run(
        self,
        split: str,
        source: Any,
        *,
        seed: int,
        poll: Callable[[], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Passed:
        """What one pass over `source` came to.

        E-DATA-067 or -069 for what the host's hooks return.
        """
        totals = self._pass(split, source, seed, None, poll, progress)
        values, empty = totals.reduced()
        for name in empty:
            self._say(f"{split}: {name}: no data")
        return passed(totals, self._finalized(values, split))

    def emitted(self, split: str, source: Any, seed: int) -> list[str]:
        """The names of all metrics of `split`: its first batch is run, and dropped."""
        totals = self._pass(split, source, seed, 1)
        values, empty = totals.reduced()
        made = passed(totals, self._finalized(values, split))
        return list(dict.fromkeys([*made.values, *empty]))

    def _pass(
        self,
        split: str,
        source: Any,
        seed: int,
        limit: int | None,
        poll: Callable[[], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Totals:
        """Runs all batches, or the first `limit`; each report is read one batch late."""
        stager = EvalStager(self._machine, self._widths, split, source)
        totals = Totals(split)
        pending: Pending | None = None
        with open_epoch(source, 0, seed, prepare=stager.stage, split=split, poll=poll) as batches:
            for index, staged in enumerate(batches):
                if limit is not None and index >= limit:
                    break
                if poll is not None:
                    poll()
                if index == 0 and staged.lacking:
                    names = ", ".join(staged.lacking)
                    self._say(f"{split}: no val_loss, its batches have no {names}")
                before, pending = pending, self._batch(staged, index, totals)
                if before is not None:
                    totals.add(before)
                if progress is not None:
                    progress(index + 1)
        if pending is not None:
            totals.add(pending)
        return totals

    def _batch(self, staged: Staged, index: int, totals: Totals) -> Pending:
        machine, plan = self._machine, staged.plan
        context = context_of(totals.split, index)
        forward = machine.program(plan.forward)
        given = {**staged.fields, **place_context(machine, forward, self._scalars, context)}
        results = machine.call(forward, given)
        outputs = _outputs(forward, results)
        pending = Pending(plan.rows, Call(forward, self._reports[plan.forward], results), None)
        if not staged.lacking and machine.has(plan.reduce):
            pending.reduce = self._reduce(plan, {**staged.fields, **outputs}, context)
        elif not staged.lacking and self.reduces(plan.width):
            raise self._no_reduce(plan, totals.split)
        if self._host.metric_fields is not None:
            pending.found = self._host_metrics(plan, outputs, staged.batch, totals.host)
        for array in (*staged.fields.values(), *outputs.values()):
            pjrt.delete(array)
        return pending

    def _reduce(
        self, plan: Plan, given: dict[str, DeviceArray], context: Mapping[str, np.ndarray]
    ) -> Call:
        machine = self._machine
        program = machine.program(plan.reduce)
        given.update(place_context(machine, program, self._scalars, context))
        return Call(program, self._reports[plan.reduce], machine.call(program, given))

    def _host_metrics(
        self, plan: Plan, outputs: Mapping[str, DeviceArray], batch: Batch, totals: Accumulator
    ) -> list[Found]:
        """Adds what the hook returns, and gives what its marks found."""
        leaves = {
            name.removeprefix("outputs."): pjrt.read(array)[: plan.rows]
            for name, array in outputs.items()
        }
        with running(Place("metrics", Kind.NUMPY, self._host.root)) as place:
            values = self._host.metrics(unflatten(self._spec, leaves), batch)
        totals.add_host(values)
        return place.collected

    def reduces(self, width: int) -> bool:
        """Whether the bundle evaluates the loss at this width at all."""
        return any(
            program.role == "reduce" and program.dims.get("width") == width
            for program in self._machine.manifest.programs.values()
        )

    def _no_reduce(self, plan: Plan, split: str) -> DataError:
        there = sorted(
            program.dims["rows"]
            for program in self._machine.manifest.programs.values()
            if program.role == "reduce" and program.dims.get("width") == plan.width
        )
        return DataError(
            61,
            f"a batch of {plan.rows} rows; at width {plan.width} the bundle sums over "
            f"{', '.join(map(str, there))}",
            where=f"split {split}",
            help="build with data whose last batch has this many rows",
            step_found=True,
        )

    def _finalized(self, values: dict[str, Any], split: str) -> dict[str, Any]:
        found: Any = self._host.finalize_metrics(values, split)
        if not isinstance(found, Mapping):
            raise DataError(
                67,
                f"`finalize_metrics` returned a {type(found).__name__} for split {split}, "
                "expected a dict of values by name",
                where="finalize_metrics",
                help="end with `return acc`, or with a dict of your own",
                step_found=True,
            )
        metrics = {str(name): value for name, value in cast("Mapping[str, Any]", found).items()}
        taken = sorted(LINE_KEYS.intersection(metrics))
        if taken:
            raise DataError(
                69,
                f"split {split} has a metric {taken[0]!r}, a name of the log's own",
                where="metrics",
                step_found=True,
            )
        return metrics

    # ------------------------------------------------------------------- before the first step

    def programs(self, split: str, known_rows: Iterable[int]) -> list[str]:
        """The programs a pass over `split` is known to need."""
        width = self._widths.of_split(split)
        if width is None:
            return []
        lacks = lacking(self._machine.manifest, split, width)
        names: list[str] = []
        for rows in sorted({width, *known_rows}, reverse=True):
            with suppress(DataError):  # a row count with no program is refused by its batch
                plan = self._widths.plan(rows, width)
                needed = (plan.forward,) if lacks else (plan.forward, plan.reduce)
                names += [name for name in needed if self._machine.has(name)]
        return list(dict.fromkeys(names))

    def device_metrics(self, split: str) -> list[str]:
        """The metrics that need no host hook: those of the split's reduce program, and of marks."""
        width = self._widths.of_split(split)
        if width is None or lacking(self._machine.manifest, split, width):
            return []
        programs = self._machine.manifest.programs
        at = [report for n, report in self._reports.items() if programs[n].dims["width"] == width]
        names: list[str] = []
        for word in (word for report in at for word in report.words):
            name = word.rpartition(".")[0]
            names.append("val_loss" if name == "loss" else name.removeprefix("metric."))
        return list(dict.fromkeys([*names, *(n for r in at for n in r.marks.metric_names())]))


def place_context(
    machine: Machine, program: Program, scalars: Scalars, context: Mapping[str, np.ndarray]
) -> dict[str, DeviceArray]:
    """Scalars, split number and batch index of one call, for the arguments the program has."""
    placed: dict[str, DeviceArray] = {}
    for arg in program.entry.args:
        if arg.role == "scalars":
            placed[arg.name] = machine.put(scalars.pack(program.entry.scalars, arg.shape), arg)
        elif arg.role in context:
            placed[arg.name] = machine.put(context[arg.role], arg)
    return placed


def _outputs(program: Program, results: list[DeviceArray]) -> dict[str, DeviceArray]:
    return {
        entry.name: array
        for entry, array in zip(program.entry.results, results, strict=True)
        if entry.role == "outputs"
    }


def context_of(split: str, index: int) -> dict[str, np.ndarray]:
    """What random keys of a call are folded with: the split's number and the batch index."""
    return {
        "split": np.array(split_number(split), np.int32),
        "index": np.array(index, np.int32),
    }
