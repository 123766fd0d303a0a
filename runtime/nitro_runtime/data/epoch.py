"""One pass over a source: every batch once, in order, prepared ahead of its use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from nitro_runtime.data.ahead import Ahead
from nitro_runtime.data.prefetch import depth_of, pace_of, unwrap
from nitro_runtime.data.source import (
    Batch,
    batches,
    begin,
    check_batch,
    check_source,
    close,
    indexed,
    is_addressable,
)
from nitro_runtime.errors import DataError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pass(Iterator[T_co], AbstractContextManager["Pass[T_co]"], Protocol[T_co]):
    """An iterator over prepared batches; `close` (or leaving `with`) ends its thread."""

    def close(self) -> None: ...


class _Direct(Iterator[T]):
    """The same on the consumer's thread: nothing is prepared ahead."""

    def __init__(self, read: Iterator[Any], prepare: Callable[[Any], T]) -> None:
        self._read = read
        self._prepare = prepare

    def __next__(self) -> T:
        try:
            return self._prepare(next(self._read))
        except BaseException:  # an epoch that failed is over
            close(self._read)
            raise

    def close(self) -> None:
        close(self._read)

    def __enter__(self) -> _Direct[T]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open_epoch(
    source: Any,
    epoch: int,
    seed: int,
    *,
    prepare: Callable[[Batch], T],
    split: str,
    depth: int | None = None,
    start: int = 0,
    poll: Callable[[], None] | None = None,
) -> Pass[T]:
    """`prepare(batch)` for each batch of `epoch`, in order, from batch index `start` on.

    `begin_epoch` or `set_epoch` runs here, in the calling thread; the batches are read and prepared
    on one thread, at most `depth` ahead (the wrapper's, when None; 0: no thread), or on the calling
    one where that is quicker (`Pace`; a `Prefetch` remembers it from epoch to epoch). A source
    without `batch_at` is read from its beginning to reach `start`. `poll` is called while a batch
    is waited for; what it raises ends the wait.

    Errors of the source or of `prepare` arrive as themselves, with a note naming split and batch.
    Raises as `check_source` and `check_batch`, and E-DATA-040 when the source gives another number
    of batches than `len` says.
    """
    inner = unwrap(source)
    check_source(inner, split)
    plan = begin(inner, epoch, seed)
    count = batches(inner, split)
    read = _read(inner, plan, count, start, split)
    bound = depth_of(source) if depth is None else depth

    def prepare_one(item: tuple[int, Batch]) -> T:
        index, batch = item
        try:
            return prepare(batch)
        except Exception as error:
            _locate(error, split, index)
            raise

    if bound == 0:
        return _Direct(read, prepare_one)
    return Ahead(read, prepare_one, bound, pace_of(source), poll)


def _locate(error: Exception, split: str, index: int) -> None:
    """Notes split and batch index on what was raised.

    A StopIteration that escapes user code would end the epoch early: it becomes a RuntimeError,
    as Python makes it inside generators.
    """
    where = f"in split {split!r}, batch {index}"
    if isinstance(error, StopIteration):
        raise RuntimeError(f"StopIteration {where}") from error
    if where not in getattr(error, "__notes__", ()):
        error.add_note(where)


def _read(
    source: Any, plan: Any, count: int, start: int, split: str
) -> Generator[tuple[int, Batch], None, None]:
    if is_addressable(source):
        ask = indexed(source, plan)
        for index in range(start, count):
            try:
                batch = check_batch(ask(index), split, index)
            except Exception as error:
                _locate(error, split, index)
                raise
            yield index, batch
        return
    iterator = iter(source)
    try:
        yield from _iterate(iterator, count, start, split)
    finally:
        close(iterator)


def _iterate(
    iterator: Iterator[Any], count: int, start: int, split: str
) -> Generator[tuple[int, Batch], None, None]:
    index = 0
    while True:
        try:
            batch = next(iterator, _END)
            _check_count(index, count, split, ended=batch is _END)
            checked = (
                check_batch(batch, split, index) if index >= start and batch is not _END else None
            )
        except Exception as error:
            _locate(error, split, index)
            raise
        if batch is _END:
            return
        if checked is not None:
            yield index, checked
        index += 1


_END: Any = object()


def _check_count(index: int, count: int, split: str, *, ended: bool) -> None:
    if ended == (index == count):
        return
    found = f"gave {index}" if ended else "gives more"
    raise DataError(
        40,
        f"len() is {count} batches, but the source {found}",
        where=f"split {split!r}",
        help="__len__ is the number of batches iterating gives, each time it starts",
        step_found=True,
    )
