"""Whether a source's batches are worth a thread of their own."""

from __future__ import annotations

import statistics

_WORTHWHILE_SECONDS = 400e-6
_SAMPLES = 5


class Pace:
    """The time that the last few batches of one source took to read and prepare.

    Handing a batch from one thread to another costs some 100 us, and while both threads want the
    interpreter's lock each dispatch another 100: a batch cut from arrays in memory arrives sooner
    when the consumer makes it itself, while the device is at work. Every few batches their median
    decides anew: one stall, as at the first batch, does not.

    `quick`: whether making a batch takes less time than a thread would save.
    """

    def __init__(self) -> None:
        self.quick = False
        self._seconds: list[float] = []

    def took(self, seconds: float) -> None:
        self._seconds.append(seconds)
        if len(self._seconds) == _SAMPLES:
            self.quick = statistics.median(self._seconds) < _WORTHWHILE_SECONDS
            self._seconds.clear()
