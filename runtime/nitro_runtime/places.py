"""Where user code is running: marks ask it what a call of theirs means there.

Outside nitroc there is no place, and a mark does nothing but return its value.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """What a mark does in a place."""

    TRACED = "it becomes a result of the program"
    NUMPY = "it is evaluated at once, on numpy"
    REFUSED = "there is no step it could stop"


@dataclass
class Place:
    """A hook, a source or a schedule while it runs. `name` is what errors call it.

    `root` is the project's folder, which sources are relative to. `collected` takes what marks of a
    NUMPY place found; `dropped` the diagnostics, as `Found` too, that never run where they stand.
    """

    name: str
    kind: Kind
    root: str | None = None
    collected: list[Found] = field(default_factory=list["Found"])
    dropped: list[Found] = field(default_factory=list["Found"])


@dataclass(frozen=True)
class Found:
    """One call of a mark outside a program: which mark it is, and what the call found.

    `kind name meta reduce below above source` are those of the mark, as the manifest has them.
    `count`: violations, 0 for a value without bounds. `odd`: why a count was taken for 1, as 1
    (negative), 2 (infinite), 3 (NaN), else 0. `value`: that of a metric, else None.
    """

    kind: str
    name: str
    meta: tuple[tuple[str, bool | int | float | str], ...] = ()
    reduce: str = "mean"
    below: float | None = None
    above: float | None = None
    source: str = ""
    count: int = 0
    odd: int = 0
    value: float | None = None


_PLACE: ContextVar[Place | None] = ContextVar("place", default=None)
_REMEMBERED: ContextVar[list[Found] | None] = ContextVar("remembered", default=None)


def current() -> Place | None:
    """The innermost place of this thread; None outside nitroc."""
    return _PLACE.get()


@contextmanager
def running(place: Place) -> Generator[Place]:
    """Code inside runs in `place`."""
    token = _PLACE.set(place)
    try:
        yield place
    finally:
        _PLACE.reset(token)
        remembered = _REMEMBERED.get()
        if remembered is not None:
            remembered.extend(place.dropped)


@contextmanager
def outside() -> Generator[None]:
    """Code inside runs as outside nitroc: a library that only asks a model for its shapes."""
    token = _PLACE.set(None)
    try:
        yield
    finally:
        _PLACE.reset(token)


@contextmanager
def remembering() -> Generator[list[Found]]:
    """Yields the list that takes what places inside drop, for the report."""
    found: list[Found] = []
    token = _REMEMBERED.set(found)
    try:
        yield found
    finally:
        _REMEMBERED.reset(token)
