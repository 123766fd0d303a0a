"""Arrays in memory as a data source, on numpy alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from nitro_runtime.data.random import rng
from nitro_runtime.errors import DataError

Column: TypeAlias = "np.ndarray[Any, Any] | list[Any] | None"
Plan: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]] | None"

_NUMBERS = "biufcV"  # V: bf16 and fp8, which numpy counts among its raw kinds


class ArraySource:
    """Batches cut from columns of equal length; see `arrays`.

    `rows` counts all rows, `dropped` those no batch of an epoch holds.
    """

    def __init__(
        self, columns: Mapping[str, Column], rows: int, batch_size: int, shuffle: bool, drop: bool
    ) -> None:
        self._columns = dict(columns)
        self.rows = rows
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop

    @property
    def dropped(self) -> int:
        return self.rows % self.batch_size if self.drop_last else 0

    def __len__(self) -> int:
        whole, rest = divmod(self.rows, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def begin_epoch(self, epoch: int, seed: int) -> Plan:
        """The epoch's permutation of the rows, int64[rows], or None without `shuffle`."""
        return rng(seed, epoch).permutation(self.rows) if self.shuffle else None

    def batch_at(self, i: int, plan: Plan) -> dict[str, Any]:
        """Rows of batch `i` as fresh arrays, `batch_size` of them but for a short last batch."""
        if not 0 <= i < len(self):
            raise IndexError(f"batch {i} of {len(self)}")
        span = slice(i * self.batch_size, min((i + 1) * self.batch_size, self.rows))
        wanted = np.arange(span.start, span.stop) if plan is None else plan[span]
        return {name: _take(column, wanted) for name, column in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The batches of epoch 0 under seed 0."""
        plan = self.begin_epoch(0, 0)
        return (self.batch_at(i, plan) for i in range(len(self)))

    def __repr__(self) -> str:
        options = "".join(f", {o}" for o in ("shuffle", "drop_last") if getattr(self, o))
        names = ", ".join(self._columns)
        return f"arrays({names}: {self.rows} rows, batch_size={self.batch_size}{options})"


def arrays(
    fields: Mapping[str, np.ndarray[Any, Any] | Sequence[Any] | None],
    batch_size: int,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
) -> ArraySource:
    """A source of batches `{name: values[batch_size, ...]}` from arrays `[rows, ...]`.

    `shuffle` draws one permutation from (seed, epoch). The last batch is short unless `drop_last`
    leaves it out. Lists of numbers become arrays; lists of anything else stay lists, and None is
    passed in every batch. Raises E-DATA-041 for fields of unequal length, E-DATA-042 for no field
    with rows or a field without a row axis, E-DATA-043 for a batch size below 1.
    """
    size = _batch_size(batch_size)
    columns = {name: _column(name, values) for name, values in fields.items()}
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    if not lengths:
        raise DataError(
            42, "no field with rows", help='pass arrays by field name: {"x": x, "label": y}'
        )
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise DataError(
            41, f"fields of unequal length: {found}", help="each field needs one entry per row"
        )
    return ArraySource(columns, next(iter(lengths.values())), size, shuffle, drop_last)


def _batch_size(value: Any) -> int:
    if not isinstance(value, int | np.integer) or value < 1:
        raise DataError(43, f"batch_size is {value!r}", help="give a whole number from 1 on")
    return int(value)


def _column(name: str, values: np.ndarray[Any, Any] | Sequence[Any] | None) -> Column:
    if values is None:
        return None
    if isinstance(values, list | tuple):
        array = _numbers(values)
        return list(values) if array is None else array
    array = np.asarray(values)
    if not array.ndim:
        raise DataError(
            42,
            f"field {name!r} is a single value",
            help="each field needs one entry per row; a constant belongs in a field of the class",
        )
    return array


def _numbers(values: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    try:
        array = np.asarray(values)
    except ValueError:  # rows of unequal length: numpy makes no array of them
        return None
    return array if array.dtype.kind in _NUMBERS and array.dtype.names is None else None


def _take(column: Column, wanted: np.ndarray[Any, Any]) -> Column:
    if column is None:
        return None
    return [column[i] for i in wanted] if isinstance(column, list) else column[wanted]
