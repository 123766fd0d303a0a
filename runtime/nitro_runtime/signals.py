"""Ctrl-C and SIGTERM while training: the first asks the run to end, the second ends it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

TERMINATED = 143


class Interrupts:
    """Handles signals while open, on the main thread only; elsewhere it never sees one.

    The handler sets `caught`, which the loop polls; SIGTERM stays it. A second Ctrl-C raises
    KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self._ctrl_c = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._ctrl_c:
                raise KeyboardInterrupt
            self._ctrl_c = True
        if not self.terminated:
            self.caught = number

    @property
    def terminated(self) -> bool:
        """Whether SIGTERM was caught."""
        return self.caught == signal.SIGTERM
