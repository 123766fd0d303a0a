"""Long native work that leaves the main thread open to Ctrl-C."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.05
_LEAVE_SECONDS = 0.5


def interruptible(work: Callable[[], T], poll: Callable[[], None] | None = None) -> T:
    """`work()` on a worker thread while the main thread stays open to signals.

    Native code that runs on the main thread delays Python's signal handlers to its end. Left by an
    exception (Ctrl-C, or what `poll` raises), the worker ends by itself and its result is dropped;
    a process that ends before it takes the exit status of that exception.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome: list[T] = []
    failure: list[BaseException] = []
    # Not Thread.join: interrupted, it takes a running thread for one that has ended.
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # raised again on the main thread, below
            failure.append(error)
        done.set()

    threading.Thread(target=run, name="nitro-compile", daemon=True).start()
    try:
        while not done.wait(_POLL_SECONDS):
            if poll is not None:
                poll()
    except BaseException as error:
        atexit.register(_leave, done, _exit_status(error))
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def _exit_status(error: BaseException) -> int:
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _leave(done: threading.Event, status: int) -> None:
    """Ends the process where a worker is still in native code.

    Python would end that thread by unwinding it once it comes back, which native code answers with
    an abort.
    """
    with contextlib.suppress(KeyboardInterrupt):
        done.wait(_LEAVE_SECONDS)
    if not done.is_set():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)
