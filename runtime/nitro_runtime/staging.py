"""Batches of an evaluated split on their way to the device, filled up to a compiled width."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.data.schema import FieldSpec, Schema, conform, row_count
from nitro_runtime.data.source import Batch
from nitro_runtime.data.source import rows as rows_of
from nitro_runtime.machine import Machine, batch_args, field_of
from nitro_runtime.manifest import ArgEntry, Manifest
from nitro_runtime.pjrt import DeviceArray
from nitro_runtime.widths import Plan, Widths


def fill(array: np.ndarray, width: int) -> np.ndarray:
    """`array` with its last row repeated up to `width` rows."""
    if len(array) == width:
        return array
    return np.concatenate([array, np.repeat(array[-1:], width - len(array), axis=0)])


@dataclass
class Staged:
    """A batch on its way: how it runs, its fields on the device, and as the source gave it.

    `lacking` are fields that reduce takes and the split does not have: such a split has outputs and
    host metrics, and no `val_loss`.
    """

    plan: Plan
    fields: dict[str, DeviceArray]
    batch: Batch
    lacking: tuple[str, ...]


class EvalStager:
    """Makes a source's batches ready on the device; runs on the reading thread."""

    def __init__(self, machine: Machine, widths: Widths, split: str, source: Any) -> None:
        self._machine = machine
        self._widths = widths
        self._split = split
        self._width = widths.of_split(split)
        self._batches = len(unwrap(source))
        self._index = 0
        self._lacking: tuple[str, ...] = ()

    def stage(self, batch: Batch) -> Staged:
        rows = rows_of(batch, self._split, self._index)
        width = self._width = self._width or self._widths_for(rows)
        if self._index == 0:
            self._lacking = lacking(self._machine.manifest, self._split, width, batch)
        args = self._args(width)
        schema = Schema(
            {field_of(a): FieldSpec(a.dtype, a.shape[1:], a.dtype) for a in args},
            max(width, rows),  # a batch that is too wide is refused by its plan, which says more
            None,
            self._batches,
        )
        arrays = conform(batch, schema, self._split, self._index)
        rows = row_count(arrays, self._split, self._index) if arrays else rows
        plan = self._widths.plan(rows, width)
        args = args if plan.width == width else self._args(plan.width)
        filled = {name: fill(array, plan.width) for name, array in arrays.items()}
        self._index += 1
        return Staged(plan, self._machine.put_fields(args, filled), batch, self._lacking)

    def _widths_for(self, rows: int) -> int:
        """The narrowest compiled width that holds `rows`; refused later when there is none."""
        return next((w for w in self._widths.all if w >= rows), max(self._widths.all, default=rows))

    def _args(self, width: int) -> list[ArgEntry]:
        """The batch fields that the split's programs take at `width`."""
        manifest = self._machine.manifest
        found = fields_of(manifest, "forward", width)
        if not self._lacking:
            found |= fields_of(manifest, "reduce", width)
        return list(found.values())


def fields_of(manifest: Manifest, role: str, width: int) -> dict[str, ArgEntry]:
    """The batch fields of the programs of `role` at `width`, by argument name."""
    programs = manifest.programs.values()
    at = [p for p in programs if p.role == role and p.dims.get("width") == width]
    return {arg.name: arg for program in at for arg in batch_args(program)}


def lacking(
    manifest: Manifest, split: str, width: int, fields: Iterable[str] | None = None
) -> tuple[str, ...]:
    """What reduce takes at `width` and `split` never had; nothing where the build knows it had.

    A split that the build did not see has `fields`, those of its first batch.
    """
    seen = manifest.batch_schema.get(split)
    there = fields if seen is None else seen.fields
    if there is None:
        return ()
    wanted = (
        fields_of(manifest, "reduce", width).keys() - fields_of(manifest, "forward", width).keys()
    )
    return tuple(sorted({name.removeprefix("batch.") for name in wanted} - set(there)))
