"""What the batches of a split look like, and the check that each batch looks like that.

Narrowing: f64 -> f32, i64 -> i32, ui64 -> ui32, c128 -> c64, only when every value fits. Every
numpy layout (order, strides, byte order) is accepted and means what it means in numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from nitro_runtime.data.source import batch_at, begin, check_batch, is_addressable, probe
from nitro_runtime.dtypes import has_ir_dtype, ir_dtype, native, spell
from nitro_runtime.errors import DataError

Array: TypeAlias = "np.ndarray[Any, Any]"

RESERVED = ("train", "key", "self")
"""Names of what the framework hands to hooks; no field may have one."""

_NARROW: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}


@dataclass(frozen=True)
class FieldSpec:
    """One field: its IR dtype after narrowing, shape without the batch axis, dtype as loaded."""

    dtype: str
    shape: tuple[int, ...]
    numpy_dtype: str

    def __str__(self) -> str:
        return spell(self.dtype, self.shape)

    @property
    def narrowed(self) -> bool:
        return ir_dtype(np.dtype(self.numpy_dtype)) != self.dtype


@dataclass(frozen=True)
class Schema:
    """The batches of a split.

    `fields` are those hooks ask for and programs take; `unrouted` says of every other field why it
    stays on the host or what it holds. `width` is the rows of a full batch, `last` those of the
    last batch (None when only reading the whole split would tell), `batches` how many there are.
    """

    fields: dict[str, FieldSpec]
    width: int
    last: int | None
    batches: int
    unrouted: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Look:
    """A split's first batch, the last where it is at hand, and the number of batches."""

    split: str
    first: Mapping[str, Any]
    last: Mapping[str, Any] | None
    batches: int

    @property
    def numeric(self) -> dict[str, Array]:
        """The fields a program can take, as arrays."""
        found = {name: as_numeric(value) for name, value in self.first.items()}
        return {name: array for name, array in found.items() if array is not None}


def look(source: Any, split: str, seed: int) -> Look:
    """Reads the first batch of epoch 0, and the last one of an addressable source.

    An iteration of its own: `source` starts afresh at the next. Raises what
    `nitro_runtime.data.source.probe` does, and E-DATA-002 for a reserved field name.
    """
    seen = probe(source, split, seed)
    for name in RESERVED:
        if name in seen.first:
            raise DataError(
                2,
                f"the batch has a field {name!r}, which is a name of the framework's",
                where=f"split {split!r}",
                help=f"rename the field; {', '.join(RESERVED)} are reserved",
            )
    last = seen.first if seen.batches == 1 else None
    if seen.batches > 1 and is_addressable(source):
        index = seen.batches - 1
        last = check_batch(batch_at(source, index, begin(source, 0, seed)), split, index)
    return Look(split, seen.first, last, seen.batches)


def as_numeric(value: Any) -> Array | None:
    """`value` as an array when a program could hold it, else None (text, objects, None)."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length: numpy makes no array of them
        return None
    return array if has_ir_dtype(array.dtype) else None


def describe(value: Any) -> str:
    """What a field holds, for messages: `f32[32,64]`, `<U5`, `list of str`, `None`."""
    array = as_numeric(value)
    if array is not None:
        return spell(ir_dtype(array.dtype), array.shape)
    if isinstance(value, np.ndarray):
        return f"dtype {cast('Array', value).dtype}"
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        kinds = sorted({type(item).__name__ for item in items})
        return f"{type(value).__name__} of {' and '.join(kinds) or 'nothing'}"
    return "None" if value is None else type(value).__name__


def make_schema(seen: Look, names: Iterable[str]) -> Schema:
    """The schema of the routed fields `names` of a split.

    Raises E-DATA-003 for a field that is not numeric, -004 for a value that does not fit, -006 for
    fields of different lengths, -007 for one without a batch axis, -039 for zero rows.
    """
    wanted = sorted(set(names))
    arrays = {name: routed(seen.first, name, seen.split, 0) for name in wanted}
    width = row_count(arrays, seen.split, 0) if arrays else 0
    if arrays and not width:
        raise DataError(39, "a batch of zero rows", where=f"split {seen.split!r}, batch 0")
    fields = {
        name: FieldSpec(ir_dtype(a.dtype), a.shape[1:], _loaded(seen.first[name]))
        for name, a in arrays.items()
    }
    rest = {name: describe(value) for name, value in seen.first.items() if name not in arrays}
    schema = Schema(fields, width, None, seen.batches, rest)
    if seen.last is None or not arrays:
        return schema
    if seen.last is seen.first:
        return Schema(fields, width, width, seen.batches, rest)
    return Schema(fields, width, _last_rows(seen, seen.last, schema), seen.batches, rest)


def _last_rows(seen: Look, batch: Mapping[str, Any], schema: Schema) -> int:
    index = seen.batches - 1
    try:
        return row_count(conform(batch, schema, seen.split, index), seen.split, index)
    except DataError as error:
        error.step_found = False
        raise


def _loaded(value: Any) -> str:
    return native(np.asarray(value).dtype).name


def conform(batch: Mapping[str, Any], schema: Schema, split: str, index: int) -> dict[str, Array]:
    """The routed fields of a batch: narrowed, C-contiguous, in native byte order.

    At most `schema.width` rows, the same in every field. Raises E-DATA-005 naming split, batch,
    field and both shapes when the batch differs from the schema; -003, -004, -006 and -007 as
    `make_schema`. All are marked as found by a step.
    """
    arrays: dict[str, Array] = {}
    for name, spec in schema.fields.items():
        if name not in batch:
            raise _differs(split, index, name, "is missing", spec, tuple(batch))
        array = arrays[name] = routed(batch, name, split, index)
        dtype = ir_dtype(array.dtype)
        if dtype != spec.dtype or array.shape[1:] != spec.shape:
            found = spell(dtype, array.shape[1:])
            raise _differs(split, index, name, f"holds {found} per row", spec, ())
    rows = row_count(arrays, split, index) if arrays else 0
    if rows > schema.width:
        raise DataError(
            5,
            f"the batch has {rows} rows, the first had {schema.width}",
            where=f"split {split!r}, batch {index}",
            help="no batch may be wider than the first of its split",
            step_found=index > 0,
        )
    return arrays


def _differs(
    split: str, index: int, name: str, what: str, spec: FieldSpec, names: tuple[str, ...]
) -> DataError:
    also = [f"the batch has {', '.join(names) or 'no fields'}"] if names else []
    return DataError(
        5,
        f"field {name!r} {what}, expected {spec} as in "
        f"{'the first batch' if index else 'the programs'}",
        where=f"split {split!r}, batch {index}, field {name!r}",
        also=also,
        help="every batch of a split has the same fields, dtypes and row shapes",
        step_found=index > 0,
    )


def routed(batch: Mapping[str, Any], name: str, split: str, index: int) -> Array:
    """Field `name` as a program takes it; E-DATA-003, -004 or -007 when it can't."""
    where = f"split {split!r}, batch {index}, field {name!r}"
    array = as_numeric(batch[name])
    if array is None:
        raise DataError(
            3,
            f"field {name!r} is {describe(batch[name])}, expected numbers: "
            "a traced hook asks for it",
            where=where,
            help="encode it as numbers in the source, or ask for it in a host hook only",
            step_found=index > 0,
        )
    if array.ndim == 0:
        raise DataError(
            7,
            f"field {name!r} is a single {describe(batch[name])} and has no batch axis",
            where=where,
            help="give one value per row, or make it a Device field of the experiment",
            step_found=index > 0,
        )
    return narrow(array, field=name, where=where, step_found=index > 0)


def row_count(arrays: Mapping[str, Array], split: str, index: int) -> int:
    """The rows of a batch; E-DATA-006 when its fields disagree, listing the sizes."""
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        listing = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(
            6,
            f"the fields have different numbers of rows: {listing}",
            where=f"split {split!r}, batch {index}",
            help="axis 0 of every field a traced hook asks for is the batch",
            step_found=index > 0,
        )
    return next(iter(sizes.values()))


def narrow(
    array: Any, *, field: str = "", where: str | None = None, step_found: bool = False
) -> Array:
    """`array` C-contiguous, in native byte order, without 64-bit numbers; rank is kept.

    E-DATA-004 names the field and the first value that does not fit.
    """
    given = np.asarray(array)
    wide = native(given.dtype)
    target = _NARROW.get(wide, wide)
    if target != wide:
        misfit = _misfit(given, target)
        if misfit is not None:
            named = f"field {field!r}" if field else "an array"
            raise DataError(
                4,
                f"{named} holds {misfit}, which does not fit {ir_dtype(target)} "
                f"({ir_dtype(wide)} is narrowed to it)",
                where=where,
                help="rescale the values, or cast them in the source to a type that holds them",
                step_found=step_found,
            )
    return np.array(given, dtype=target, order="C", copy=None)


def _misfit(array: Array, target: np.dtype[Any]) -> Any:
    if array.size == 0:
        return None
    if target.kind in "iu":
        bounds = np.iinfo(target)
        low, high = array.min(), array.max()
        return low if low < bounds.min else high if high > bounds.max else None
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.isfinite(array) & ~np.isfinite(array.astype(target))
    return array[lost].flat[0] if lost.any() else None
