"""How far a split is read ahead of the step that uses it: a wrapper's options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nitro_runtime.data.pace import Pace
from nitro_runtime.errors import DataError

_PROCESSES = "process:"


class _Wrapper:
    """`len()` and iteration pass straight through to the source, in the caller's thread."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)


class NoPrefetch(_Wrapper):
    """Reads each batch when the step asks for it, on its thread."""

    depth = 0

    def __repr__(self) -> str:
        return f"NoPrefetch({self.source!r})"


class Prefetch(_Wrapper):
    """Reads a split ahead, on one thread, and keeps the order of its batches.

    At most `device_batches` batches wait on the device, no more than `host_batches` where that is
    given. `workers` (a count, or `"process:N"`) above one and `ordered=False` allow a source to be
    read out of turn; the one thread needs neither, and `note` says so. Raises E-DATA-044 for a
    value below 1.
    """

    def __init__(
        self,
        source: Any,
        workers: int | str | None = None,
        device_batches: int = 1,
        host_batches: int | None = None,
        ordered: bool = True,
    ) -> None:
        super().__init__(source)
        self.workers = None if workers is None else _at_least_one("workers", workers)
        self.device_batches = _at_least_one("device_batches", device_batches)
        self.host_batches = (
            None if host_batches is None else _at_least_one("host_batches", host_batches)
        )
        self.ordered = ordered
        self.pace = Pace()

    @property
    def depth(self) -> int:
        """Prepared batches that may wait for the consumer."""
        if self.host_batches is None:
            return self.device_batches
        return min(self.device_batches, self.host_batches)

    @property
    def note(self) -> str | None:
        """The report's line where one thread does the work of the workers asked for."""
        if self.workers is None or self.workers == 1:
            return None
        return f"workers={self.workers}: read ahead by one thread"

    def __repr__(self) -> str:
        return f"Prefetch({self.source!r}, device_batches={self.device_batches})"


def wrapped(source: Any) -> Prefetch | NoPrefetch:
    """The source read ahead, unless its owner has said how."""
    return source if isinstance(source, Prefetch | NoPrefetch) else Prefetch(source)


def unwrap(source: Any) -> Any:
    """The source inside any number of wrappers."""
    while isinstance(source, _Wrapper):
        source = source.source
    return source


def depth_of(source: Any) -> int:
    """How many prepared batches of `source` may wait; 1 for a source that is not wrapped."""
    return source.depth if isinstance(source, Prefetch | NoPrefetch) else 1


def pace_of(source: Any) -> Pace:
    """What is known of the time a batch of `source` takes; nothing, where it is not wrapped."""
    return source.pace if isinstance(source, Prefetch) else Pace()


def _at_least_one(name: str, value: Any) -> int:
    count = value
    if name == "workers" and isinstance(value, str) and value.startswith(_PROCESSES):
        number = value.removeprefix(_PROCESSES)
        count = int(number) if number.isdecimal() else 0
    if isinstance(count, int) and not isinstance(count, bool) and count >= 1:
        return count
    raise DataError(
        44,
        f"Prefetch: {name} is {value!r}",
        help="give a whole number from 1 on; NoPrefetch(source) turns reading ahead off",
    )
