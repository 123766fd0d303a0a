"""What a data source is, and what is found out about one before training.

    Source       len(source) batches per epoch, iterating restarts
    Addressable  begin_epoch(epoch, seed) -> plan, batch_at(i, plan) -> batch
    Reseedable   an iterable with set_epoch(epoch, seed)

A batch is a mapping from field names to numpy arrays, batch axis first; other values are passed
through to host hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.errors import DataError

Batch: TypeAlias = Mapping[str, Any]

_UNKNOWN_ORDER = "order not reproducible, resume continues at the next epoch"


@runtime_checkable
class Source(Protocol):
    """`len` in batches, and iteration that restarts each time."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


@runtime_checkable
class Addressable(Protocol):
    """Batches by index: `begin_epoch` is pure, `batch_at` pure and thread-safe.

    `i` is the 0-based index of a *batch*; `plan` is what `begin_epoch` returned, whatever it is.
    """

    def __len__(self) -> int: ...
    def begin_epoch(self, epoch: int, seed: int) -> Any: ...
    def batch_at(self, i: int, plan: Any) -> Batch: ...


@runtime_checkable
class Reseedable(Protocol):
    """An iterable whose order is decided by `set_epoch`, called before each iteration."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...
    def set_epoch(self, epoch: int, seed: int) -> None: ...


@dataclass(frozen=True)
class Order:
    """Whether a run resumes exactly with this source; `note` is the report's line when not."""

    exact: bool
    note: str | None = None


@dataclass(frozen=True)
class Probe:
    """What one look at a source shows: the first batch, the count, rows of the last if known."""

    first: Batch
    batches: int
    last_rows: int | None


def is_addressable(source: object) -> bool:
    """Whether batches are asked for by index; a list of batches is."""
    return isinstance(source, Addressable | list | tuple)


def begin(source: Any, epoch: int, seed: int) -> Any:
    """Tells `source` that an epoch starts and returns its plan, None where it has none."""
    if isinstance(source, Addressable):
        return source.begin_epoch(epoch, seed)
    if isinstance(source, Reseedable):
        source.set_epoch(epoch, seed)
    return None


def indexed(source: Any, plan: Any) -> Callable[[int], Any]:
    """How batch `i` of an addressable source is had under `plan`."""
    if not isinstance(source, Addressable):
        return source.__getitem__
    return lambda i: source.batch_at(i, plan)


def batch_at(source: Any, i: int, plan: Any) -> Any:
    """Batch `i` of an addressable source."""
    return indexed(source, plan)(i)


def order(source: Any) -> Order:
    """Whether the order of `source` can be given again, from any batch on."""
    inner = unwrap(source)
    if not getattr(source, "ordered", True):
        return Order(False, f"ordered=False: {_UNKNOWN_ORDER}")
    if is_addressable(inner) or isinstance(inner, Reseedable):
        return Order(True)
    return Order(False, _half(inner) + _UNKNOWN_ORDER)


def _half(source: Any) -> str:
    for have, miss in (("begin_epoch", "batch_at"), ("batch_at", "begin_epoch")):
        if hasattr(source, have):
            return f"{have} without {miss}, so read by iteration; "
    return ""


def check_source(source: Any, split: str) -> int:
    """The number of batches of `source`; raises for what can't be trained on, naming `split`.

    E-DATA-032 a one-shot iterator, -033 not a source, -034 no `len`, -035 no batches.
    """
    where = f"split {split!r}"
    source = unwrap(source)
    if isinstance(source, Iterator) and not hasattr(source, "__len__"):
        raise DataError(
            32,
            f"{_kind(source)} can be read once only, and every epoch reads it again",
            where=where,
            help="return an object whose __iter__ starts afresh, with __len__; a list of batches "
            "will do",
        )
    if isinstance(source, Mapping | np.ndarray | str) or not _readable(source):
        raise DataError(
            33,
            f"{_kind(source)} is not a data source",
            where=where,
            help="give it __len__ and __iter__, or begin_epoch and batch_at; see nt.data.arrays",
        )
    count = batches(source, split)
    if count == 0:
        raise DataError(35, "no batches", where=where, help=_emptiness(source))
    return count


def _readable(source: Any) -> bool:
    return is_addressable(source) or hasattr(source, "__iter__")


def _kind(source: Any) -> str:
    return f"a {type(source).__name__}"


def _emptiness(source: Any) -> str:
    rows = getattr(source, "rows", None)
    if getattr(source, "drop_last", False) and rows:
        return f"{rows} rows make no batch of {source.batch_size}, and drop_last leaves them out"
    return "leave the split out of build_data's result if there is no data for it"


def batches(source: Any, split: str) -> int:
    """`len(source)`; raises E-DATA-034, naming `split`, when it has none."""
    try:
        return len(cast(Sized, source))
    except TypeError as error:
        raise DataError(
            34,
            f"{_kind(source)} has no len(): {error}",
            where=f"split {split!r}",
            help="define __len__: the number of batches of one epoch",
        ) from error


_STR = frozenset({str})


def check_batch(batch: Any, split: str, index: int) -> Batch:
    """`batch`, if it is a mapping by field names; raises E-DATA-036 or, for None, E-DATA-037."""
    where = f"split {split!r}, batch {index}"
    if batch is None:
        raise DataError(
            37, "the source returned None for a batch", where=where, help="return every batch once"
        )
    if type(batch) is dict and _STR.issuperset(map(type, batch)):  # quick, and what most are
        return cast(Batch, batch)
    if not isinstance(batch, Mapping) or not all(isinstance(name, str) for name in batch):
        raise DataError(
            36,
            f"a batch is a dict of arrays by field name, found {_kind(batch)}",
            where=where,
            help='yield {"x": x, "label": y}',
        )
    return cast(Batch, batch)


def rows(batch: Batch, split: str, index: int = 0) -> int:
    """Length of the batch axis: of the first array, else of the first list.

    Raises E-DATA-038 when no field has one, E-DATA-039 for zero rows.
    """
    where = f"split {split!r}, batch {index}"
    length = _batch_axis(batch)
    if length is None:
        raise DataError(
            38,
            f"no field has a batch axis among {', '.join(map(repr, batch)) or 'none'}",
            where=where,
            help="the first axis of each array is the batch",
        )
    if length == 0:
        raise DataError(39, "a batch of zero rows", where=where, help="leave empty batches out")
    return length


def _batch_axis(batch: Batch) -> int | None:
    for value in batch.values():
        if isinstance(value, np.ndarray) and value.ndim:
            return len(cast("np.ndarray[Any, Any]", value))
    for value in batch.values():
        if isinstance(value, list | tuple):
            return len(cast("list[Any]", value))
    return None


def probe(source: Any, split: str, seed: int = 0) -> Probe:
    """The first batch of epoch 0 and what is known of the last, leaving `source` unread.

    Each later iteration starts afresh. The last batch is looked at only where that takes no
    reading of those before it. Raises as `check_source`, `check_batch` and `rows`.
    """
    source = unwrap(source)
    check_source(source, split)
    plan = begin(source, 0, seed)
    count = batches(source, split)
    if not is_addressable(source):
        first = check_batch(_first(source, split), split, 0)
        rows(first, split)
        return Probe(first, count, rows(first, split) if count == 1 else None)
    first = check_batch(batch_at(source, 0, plan), split, 0)
    rows(first, split)
    last = check_batch(batch_at(source, count - 1, plan), split, count - 1)
    return Probe(first, count, rows(last, split, count - 1))


def _first(source: Any, split: str) -> Any:
    iterator = iter(source)
    try:
        return next(iterator)
    except StopIteration:
        raise DataError(
            35, f"len() is {len(source)}, but iterating gives nothing", where=f"split {split!r}"
        ) from None
    finally:
        close(iterator)


def close(iterator: Any) -> None:
    """Ends a generator, so that its `finally` blocks run now."""
    finish = getattr(iterator, "close", None)
    if callable(finish):
        finish()


def dropped_rows(source: Any) -> int:
    """Rows of an epoch that no batch holds, as far as the source says (`dropped`)."""
    return int(getattr(unwrap(source), "dropped", 0))
