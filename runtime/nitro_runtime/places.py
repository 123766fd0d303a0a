"""Where user code is running: marks ask it what a call of theirs means there.

Outside nitroc there is no place, and a mark does nothing but return its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """What a mark does in a place."""

    TRACED = "it becomes a result of the program"
    NUMPY = "it is evaluated at once, on numpy"
    REFUSED = "there is no step it could stop"


@dataclass
class Place:
    """A hook, a source or a schedule while it runs. `name` is what errors call it.

    `collected` takes what marks of a NUMPY place found; `dropped` the diagnostics of a REFUSED one.
    """

    name: str
    kind: Kind
    collected: list[Any] = field(default_factory=list[Any])
    dropped: list[Any] = field(default_factory=list[Any])


_PLACE: ContextVar[Place | None] = ContextVar("place", default=None)


def current() -> Place | None:
    """The innermost place of this thread; None outside nitroc."""
    return _PLACE.get()


@contextmanager
def running(place: Place) -> Iterator[Place]:
    """Code inside runs in `place`."""
    token = _PLACE.set(place)
    try:
        yield place
    finally:
        _PLACE.reset(token)
