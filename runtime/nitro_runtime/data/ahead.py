"""One thread that runs an iterator ahead of its consumer, within a bound."""

from __future__ import annotations

import contextvars
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from nitro_runtime.data.pace import Pace

T = TypeVar("T")
R = TypeVar("R")

_POLL_SECONDS = 0.1
_JOIN_SECONDS = 0.2
_END = object()


class _Channel(Generic[T]):
    """What the two threads share. It knows neither of them, so that either can go away."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.changed = threading.Condition()
        self.items: deque[T] = deque()
        self.ended = False
        self.handed_over = False
        self.failure: BaseException | None = None
        self.closed = False

    def wait_for_room(self) -> bool:
        """Waits until an item may be made; False once the consumer has gone."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.depth)
            return not self.closed

    def offer(self, item: T) -> None:
        with self.changed:
            if not self.closed:
                self.items.append(item)
            self.changed.notify_all()

    def end(self, failure: BaseException | None) -> None:
        with self.changed:
            self.ended, self.failure = True, failure
            self.changed.notify_all()

    def hand_over(self) -> None:
        """The end of the thread, not of the items: the consumer goes on by itself."""
        with self.changed:
            self.ended = self.handed_over = True
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()

    def wait_for_item(self, seconds: float) -> bool:
        """Waits up to `seconds`; True when there is an item, an end, or nobody to wait for."""
        with self.changed:
            return self.changed.wait_for(
                lambda: bool(self.items) or self.ended or self.closed, seconds
            )


def _produce(
    channel: _Channel[T], read: Iterator[R], prepare: Callable[[R], T], pace: Pace
) -> None:
    failure: BaseException | None = None
    try:
        while channel.wait_for_room():
            started = time.perf_counter()
            raw: Any = next(read, _END)
            # A read may take long: one that outlived its consumer must not reach the device.
            if raw is _END or channel.closed:
                break
            item = prepare(raw)
            pace.took(time.perf_counter() - started)
            channel.offer(item)
            if pace.quick:
                channel.hand_over()
                return
    except BaseException as error:  # raised again where the batch is asked for
        failure = error
    try:
        _close(read)
    except BaseException as error:  # a source's `finally` block
        failure = failure or error
    channel.end(failure)


def _close(read: Iterator[Any]) -> None:
    finish = getattr(read, "close", None)
    if finish is not None:
        finish()


class Ahead(Generic[T]):
    """The items `prepare(raw)` for `raw` in `read`, in order, made up to `depth` ahead.

    A thread makes them, until `pace` finds that the consumer makes them sooner by itself; the items
    are the same. What `read` or `prepare` raises is raised here, as itself, after the items before
    it. `poll` is called about ten times a second while the thread is waited for. Close it, or use
    it in `with`.
    """

    def __init__(
        self,
        read: Iterator[R],
        prepare: Callable[[R], T],
        depth: int,
        pace: Pace,
        poll: Callable[[], None] | None = None,
    ) -> None:
        self._read: Iterator[Any] = read
        self._prepare: Callable[[Any], T] = prepare
        self._depth = depth
        self._pace = pace
        self._poll = poll
        self._thread: threading.Thread | None = None
        if not pace.quick:
            self._start()

    def _start(self) -> None:
        self._channel: _Channel[T] = _Channel(self._depth)
        # A loop left by `break` never closes its iterator: collecting it lets the thread go.
        self._finalizer = weakref.finalize(self, self._channel.close)
        # The source's code is called in the place that its consumer is in, on whichever thread.
        work = (_produce, self._channel, self._read, self._prepare, self._pace)
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=work, name="nitro-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Ahead[T]:
        return self

    def __next__(self) -> T:
        if self._thread is None:
            return self._make()
        channel = self._channel
        while not channel.wait_for_item(_POLL_SECONDS):
            if self._poll is not None:
                self._poll()
        with channel.changed:
            if channel.items:
                channel.changed.notify_all()
                return channel.items.popleft()
            failure, channel.failure = channel.failure, None
        if channel.handed_over and not channel.closed:
            self._finalizer()
            self._thread.join()
            self._thread = None
            return self._make()
        self.close()
        if failure is not None:
            raise failure
        raise StopIteration

    def _make(self) -> T:
        started = time.perf_counter()
        try:
            item = self._prepare(next(self._read))
        except BaseException:  # an epoch that failed is over, as it is with a thread
            _close(self._read)
            raise
        self._pace.took(time.perf_counter() - started)
        if not self._pace.quick:
            self._start()
        return item

    def close(self) -> None:
        """Drops what is prepared and joins the thread, for at most 0.2 s.

        A thread stuck in the source's own code ends at its next step; as a daemon it never keeps
        the process alive.
        """
        if self._thread is None:
            _close(self._read)
            return
        self._finalizer()
        self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
