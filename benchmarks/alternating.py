"""Sides that train in turns, epoch by epoch, in one process: what slows the machine slows all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

WARM = 4
"""Epochs at the start that are not counted."""

Side = Callable[[], Any]
Times = dict[str, list[float]]


def alternate(sides: Mapping[str, Side], epochs: int) -> Times:
    """The seconds of `epochs` epochs of each side; the sides take turns, and warm up first."""
    times: Times = {name: [] for name in sides}
    for _ in range(WARM + epochs):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            times[name].append(time.perf_counter() - start)
    return {name: values[WARM:] for name, values in times.items()}


class _Over(Exception):
    """No further epoch is wanted."""


class Standing:
    """A training loop on its own thread that stands still before each epoch until it is called.

    `train(turn)` trains without end and calls `turn()` where an epoch begins: all from one call's
    end to the next call is an epoch, with its logs and its epoch's end. What it raises is raised
    where it is waited for. Two loops alternate through one that is called after the other.
    """

    def __init__(self, train: Callable[[Callable[[], None]], Any]) -> None:
        self._train = train
        self._called = threading.Semaphore(0)
        self._standing = threading.Semaphore(0)
        self._over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()

    def _run(self) -> None:
        try:
            self._train(self._turn)
            raise RuntimeError("a side ended before it was closed")
        except _Over:
            pass
        except BaseException as error:  # raised again by the thread that waits
            self._failure = error
        self._standing.release()

    def _turn(self) -> None:
        self._standing.release()
        self._called.acquire()
        if self._over:
            raise _Over

    def _wait(self) -> None:
        self._standing.acquire()
        if self._failure is not None:
            raise self._failure

    def __call__(self) -> None:
        """One epoch."""
        self._called.release()
        self._wait()

    def close(self) -> None:
        """Ends the loop at the epoch it stands before."""
        self._over = True
        self._called.release()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


class Turns:
    """A source's first `steps` batches of each epoch; `turn` is called before an epoch of training.

    nitroc asks `begin_epoch` on the training thread, once per epoch; epoch 0 is a probe.
    """

    def __init__(self, source: Any, steps: int, turn: Callable[[], None] = lambda: None) -> None:
        self._source, self._steps, self._turn = source, steps, turn

    def __len__(self) -> int:
        return self._steps

    def begin_epoch(self, epoch: int, seed: int) -> Any:
        if epoch > 0:
            self._turn()
        return self._source.begin_epoch(epoch, seed)

    def batch_at(self, index: int, plan: Any) -> Any:
        return self._source.batch_at(index, plan)
