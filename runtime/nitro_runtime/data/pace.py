"""Whether a source's batches are worth a thread of their own."""

from __future__ import annotations

import statistics
from collections import deque

_WORTHWHILE_SECONDS = 100e-6
_SAMPLES = 5
_ENOUGH = 3


class Pace:
    """The time that the last few batches of one source took to read and prepare.

    Handing a batch from one thread to another costs some 100 us (both need the interpreter's lock),
    so that a batch cut from arrays in memory arrives sooner when the consumer makes it itself. The
    median decides: one stall, as at the first batch, does not.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_SAMPLES)

    def took(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def quick(self) -> bool:
        """Whether making a batch takes less time than handing it over."""
        if len(self._seconds) < _ENOUGH:
            return False
        return statistics.median(self._seconds) < _WORTHWHILE_SECONDS
