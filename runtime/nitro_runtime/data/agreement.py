"""Whether a source's two halves, iteration and index access, give the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.data.source import Batch, batch_at, begin, check_batch, check_source
from nitro_runtime.errors import DataError


def check_batch_at(source: Any, values: bool = False) -> None:
    """Compares `batch_at` with iteration, under one plan of epoch 0; returns nothing when equal.

    Field names, shapes and dtypes always; with `values` the contents too, which catches a sample
    index taken for a batch index (leave it out where batches are augmented at random). Raises
    E-DATA-045 naming batch and field.
    """
    inner = unwrap(source)
    count = check_source(inner, "source")
    for name in ("begin_epoch", "batch_at", "__iter__"):
        if not hasattr(inner, name):
            raise DataError(45, f"a {type(inner).__name__} has no {name}: nothing to compare")
    plan = begin(inner, 0, 0)
    seen = -1
    for seen, given in enumerate(inner):
        if seen == count:
            raise DataError(45, f"len() is {count}, iterating gives more batches")
        wanted = check_batch(given, "iteration", seen)
        found = check_batch(batch_at(inner, seen, plan), "batch_at", seen)
        _compare(wanted, found, seen, values)
    if seen + 1 < count:
        raise DataError(45, f"len() is {count}, iterating gives {seen + 1} batches")


def _compare(wanted: Batch, found: Batch, index: int, values: bool) -> None:
    if set(wanted) != set(found):
        raise _differs(index, "fields", sorted(wanted), sorted(found))
    for name in wanted:
        one, other = _signature(wanted[name]), _signature(found[name])
        if one != other:
            raise _differs(index, f"field {name!r}", one, other)
        if values and not _equal(wanted[name], found[name]):
            raise _differs(index, f"field {name!r}", "the same values", "others")


def _signature(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    length = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return f"{type(value).__name__}{length}"


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return bool(one == other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def _differs(index: int, what: str, wanted: Any, found: Any) -> DataError:
    return DataError(
        45,
        f"batch {index}, {what}: iterating gives {wanted}, batch_at gives {found}",
        help="batch_at(i, plan) returns the i-th batch, not the i-th row",
    )
