"""Evaluation: forward at a compiled width, sums and counts over the real rows only."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.data import open_epoch
from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.data.schema import FieldSpec, Schema, conform, row_count
from nitro_runtime.data.source import Batch
from nitro_runtime.data.source import rows as rows_of
from nitro_runtime.errors import DataError
from nitro_runtime.host import HostHooks
from nitro_runtime.machine import Machine, Program, batch_args, field_of
from nitro_runtime.manifest import ArgEntry
from nitro_runtime.metrics import Accumulator
from nitro_runtime.pjrt import DeviceArray
from nitro_runtime.report_words import ReportReader
from nitro_runtime.scalars import Scalars
from nitro_runtime.trees import TreeSpec, unflatten
from nitro_runtime.widths import Plan, Widths


def split_number(split: str) -> int:
    """The number a split's random keys are folded with: it depends on the name only."""
    return zlib.crc32(split.encode()) & 0x7FFFFFFF


def fill(array: np.ndarray, width: int) -> np.ndarray:
    """`array` with its last row repeated up to `width` rows."""
    if len(array) == width:
        return array
    return np.concatenate([array, np.repeat(array[-1:], width - len(array), axis=0)])


@dataclass
class Staged:
    """A batch on its way: how it runs, its fields on the device, and as the source gave it."""

    plan: Plan
    fields: dict[str, DeviceArray]
    batch: Batch


class Evaluator:
    """Runs passes over splits; `metrics` of a pass are the same whenever the state is."""

    def __init__(
        self, machine: Machine, scalars: Scalars, host: HostHooks, say: Callable[[str], None]
    ) -> None:
        self._machine = machine
        self._scalars = scalars
        self._host = host
        self._say = say
        self._widths = Widths(machine.manifest)
        self._spec = TreeSpec.from_json(machine.manifest.interface.outputs)

    # ------------------------------------------------------------------------------- a pass

    def run(
        self,
        split: str,
        source: Any,
        *,
        seed: int,
        limit: int | None = None,
        poll: Callable[[], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """The metrics of one pass over `source` (its first `limit` batches); see `reduced`."""
        stager = _Stager(self._machine, self._widths, split, source)
        device, host = Accumulator(), Accumulator()
        constants = self._constants(split)
        with open_epoch(source, 0, seed, prepare=stager.stage, split=split, poll=poll) as batches:
            for index, staged in enumerate(batches):
                if limit is not None and index >= limit:
                    break
                if poll is not None:
                    poll()
                self._batch(staged, index, constants, (device, host), split)
                if progress is not None:
                    progress(index + 1)
        return self._finish(device, host, split)

    def _constants(self, split: str) -> dict[str, np.ndarray]:
        return {"split": np.array(split_number(split), np.int32)}

    def _batch(
        self,
        staged: Staged,
        index: int,
        constants: Mapping[str, np.ndarray],
        totals: tuple[Accumulator, Accumulator],
        split: str,
    ) -> None:
        machine, plan = self._machine, staged.plan
        forward = machine.program(plan.forward)
        given = dict(staged.fields)
        given.update(self._small(forward, index, constants))
        results = machine.call(forward, given)
        outputs = _outputs(forward, results)
        if machine.has(plan.reduce):
            self._reduce(plan, outputs, staged, self._context(index, constants), totals[0])
        elif self.reduces(plan.width):
            raise self._no_reduce(plan, split)
        if self._host.metric_fields is not None:
            self._host_metrics(plan, outputs, staged.batch, totals[1], split)
        for array in (*staged.fields.values(), *outputs.values()):
            pjrt.delete(array)

    def _context(self, index: int, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**constants, "index": np.array(index, np.int32)}

    def _small(
        self, program: Program, index: int, constants: Mapping[str, np.ndarray]
    ) -> dict[str, DeviceArray]:
        """Scalars, split and batch index, placed for one call."""
        return place_context(self._machine, program, self._scalars, self._context(index, constants))

    def _reduce(
        self,
        plan: Plan,
        outputs: Mapping[str, DeviceArray],
        staged: Staged,
        context: Mapping[str, np.ndarray],
        totals: Accumulator,
    ) -> None:
        machine = self._machine
        program = machine.program(plan.reduce)
        given = {**staged.fields, **outputs}
        given.update(place_context(machine, program, self._scalars, context))
        results = machine.call(program, given)
        report = program.result("report")
        if report is not None:
            totals.add_words(ReportReader(program.entry.report)(pjrt.read(results[report])))
        for entry, array in zip(program.entry.results, results, strict=True):
            if entry.role == "outputs":
                name = entry.name.removeprefix("outputs.").removeprefix("metric.")
                totals.add_rows(name.removesuffix(".concat"), pjrt.read(array))

    def _host_metrics(
        self,
        plan: Plan,
        outputs: Mapping[str, DeviceArray],
        batch: Batch,
        totals: Accumulator,
        split: str,
    ) -> None:
        leaves = {
            name.removeprefix("outputs."): pjrt.read(array)[: plan.rows]
            for name, array in outputs.items()
        }
        values = self._host.metrics(unflatten(self._spec, leaves), batch)
        if values is not None:
            totals.add_host(values, split)

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

    def _finish(self, device: Accumulator, host: Accumulator, split: str) -> dict[str, Any]:
        values, empty = device.reduced()
        own, own_empty = host.reduced()
        if "val_loss" in own or "val_loss" in own_empty:
            values.pop("val_loss", None)
        for name in [*empty, *own_empty]:
            self._say(f"{split}: {name}: no data")
        return dict(self._host.finalize_metrics({**values, **own}, split))

    # ------------------------------------------------------------------- before the first step

    def programs(self, split: str, known_rows: Iterable[int]) -> list[str]:
        """The programs a pass over `split` is known to need."""
        width = self._widths.of_split(split)
        if width is None:
            return []
        names: list[str] = []
        for rows in sorted({width, *known_rows}, reverse=True):
            with suppress(DataError):  # a row count with no program is refused by its batch
                plan = self._widths.plan(rows, width)
                names += [n for n in (plan.forward, plan.reduce) if self._machine.has(n)]
        return list(dict.fromkeys(names))

    def device_metrics(self, split: str) -> list[str]:
        """The metrics that need no host hook: those of the split's reduce program."""
        width = self._widths.of_split(split)
        names: dict[str, None] = {}
        for program in self._machine.manifest.programs.values():
            if program.role == "reduce" and program.dims.get("width") == width:
                for word in program.report:
                    name = word.name.rpartition(".")[0]
                    names["val_loss" if name == "loss" else name.removeprefix("metric.")] = None
        return list(names)


class _Stager:
    """Makes a source's batches ready on the device; runs on the reading thread."""

    def __init__(self, machine: Machine, widths: Widths, split: str, source: Any) -> None:
        self._machine = machine
        self._widths = widths
        self._split = split
        self._width = widths.of_split(split)
        self._batches = len(unwrap(source))
        self._index = 0

    def stage(self, batch: Batch) -> Staged:
        rows = rows_of(batch, self._split, self._index)
        width = self._width = self._width or self._widths_for(rows)
        args = self._args(width)
        schema = Schema(
            {field_of(a): FieldSpec(a.dtype, a.shape[1:], a.dtype) for a in args},
            width,
            None,
            self._batches,
        )
        arrays = conform(batch, schema, self._split, self._index)
        rows = row_count(arrays, self._split, self._index) if arrays else rows
        plan = self._widths.plan(rows, width)
        args = args if plan.width == width else self._args(plan.width)
        filled = {name: fill(array, plan.width) for name, array in arrays.items()}
        self._index += 1
        return Staged(plan, self._machine.put_fields(args, filled), batch)

    def _widths_for(self, rows: int) -> int:
        """The narrowest compiled width that holds `rows`; refused later when there is none."""
        return next((w for w in self._widths.all if w >= rows), max(self._widths.all, default=rows))

    def _args(self, width: int) -> list[ArgEntry]:
        """The batch fields of forward and reduce at `width`."""
        found: dict[str, ArgEntry] = {}
        for program in self._machine.manifest.programs.values():
            if program.role in ("forward", "reduce") and program.dims.get("width") == width:
                found.update((arg.name, arg) for arg in batch_args(program))
        return list(found.values())


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
