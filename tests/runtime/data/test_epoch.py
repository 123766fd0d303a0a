"""One pass: order, exactly once, errors from the thread, teardown."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_runtime import data, pjrt
from nitro_runtime.data import ahead
from nitro_runtime.errors import DataError

from .test_sources import Iterable, Reseeded, batches


class Augmented(data.ArraySource):
    """Rows with noise of their own, from the generator of (seed, epoch, batch)."""

    def begin_epoch(self, epoch, seed):
        return epoch, seed, super().begin_epoch(epoch, seed)

    def batch_at(self, i, plan):
        epoch, seed, rows = plan
        batch = super().batch_at(i, rows)
        return {"x": batch["x"] + data.rng(seed, epoch, i).normal(size=batch["x"].shape)}


def keep(batch):
    return batch


def values(source, **options):
    options = {"prepare": keep, "split": "train"} | options
    with data.open_epoch(source, options.pop("epoch", 0), options.pop("seed", 0), **options) as it:
        return [float(b["x"].ravel()[0]) for b in it]


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name == "nitro-prefetch"]


def gone(seconds=5.0):
    end = time.monotonic() + seconds
    while prefetch_threads() and time.monotonic() < end:
        time.sleep(0.01)
    return not prefetch_threads()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 30),
    size=st.integers(1, 7),
    depth=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    data_=st.data(),
)
def test_E10_bytes_of_a_pass_are_equal_at_every_depth_and_start(rows, size, depth, seed, data_):
    source = Augmented({"x": np.arange(rows * 2.0).reshape(rows, 2)}, rows, size, True, False)
    start = data_.draw(st.integers(0, len(source)))
    wanted = [source.batch_at(i, source.begin_epoch(3, seed))["x"] for i in range(len(source))]
    with data.open_epoch(
        source, 3, seed, prepare=keep, split="train", depth=depth, start=start
    ) as it:
        found = [b["x"] for b in it]
    assert [f.tobytes() for f in found] == [w.tobytes() for w in wanted[start:]]


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_each_kind_of_source_gives_its_batches_once_in_order(depth):
    for source in (batches(5), Iterable(batches(5)), data.arrays({"x": np.arange(5)}, 1)):
        assert values(source, depth=depth) == [0, 1, 2, 3, 4]
        assert values(source, depth=depth, start=3) == [3, 4]


def test_an_iterable_is_told_its_epoch_before_it_is_read():
    assert values(Reseeded(batches(4)), epoch=1) == [1, 2, 3, 0]


def test_begin_epoch_runs_once_on_the_calling_thread_before_any_batch():
    calls = []

    class Source(data.ArraySource):
        def begin_epoch(self, epoch, seed):
            calls.append(("begin", threading.current_thread(), epoch, seed))
            return

        def batch_at(self, i, plan):
            calls.append(("batch", threading.current_thread()))
            return super().batch_at(i, plan)

    assert values(Source({"x": np.arange(2)}, 2, 1, False, False), epoch=4, seed=9) == [0, 1]
    assert calls[0] == ("begin", threading.main_thread(), 4, 9)
    assert [c[0] for c in calls] == ["begin", "batch", "batch"]
    assert calls[1][1].name == "nitro-prefetch"


def test_len_is_read_again_after_begin_epoch():
    class Growing(data.ArraySource):
        def begin_epoch(self, epoch, seed):
            self.batch_size = 1
            return

    assert values(Growing({"x": np.arange(4)}, 4, 2, False, False)) == [0, 1, 2, 3]


def test_the_wrapper_decides_the_depth():
    before = threading.active_count()
    with data.open_epoch(data.NoPrefetch(batches(3)), 0, 0, prepare=keep, split="t") as it:
        next(it)
        assert threading.active_count() == before
    assert data.Prefetch(batches(1), device_batches=3).depth == 3
    assert data.Prefetch(batches(1), device_batches=3, host_batches=2).depth == 2


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_batches_wait(depth):
    made = []

    def prepare(batch):
        time.sleep(0.0005)
        made.append(batch)
        return batch

    with data.open_epoch(batches(20), 0, 0, prepare=prepare, split="t", depth=depth) as it:
        most = 0
        for taken, _ in enumerate(it, 1):
            time.sleep(0.01)
            most = max(most, len(made) - taken)
    assert most == depth
    assert len(made) == 20


@pytest.fixture
def clock(monkeypatch):
    """Time as the pace sees it: it passes only where a test lets it."""
    now = [0.0]
    monkeypatch.setattr(ahead, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_quick_batches_are_made_by_the_consumer_and_slow_ones_by_the_thread_again(clock):
    makers = []

    def prepare(batch):
        makers.append(threading.current_thread().name)
        clock[0] += 0.002 if len(makers) > 30 else 1e-6
        return batch

    source = data.Prefetch(batches(60))
    assert values(source, prepare=prepare) == list(range(60))
    quick = [name == "MainThread" for name in makers]
    assert quick == [False] * 5 + [True] * 30 + [False] * 25
    assert gone()


@pytest.mark.usefixtures("clock")
def test_the_wrapper_remembers_that_its_batches_are_quick():
    source = data.Prefetch(batches(60))
    values(source)
    with data.open_epoch(source, 1, 0, prepare=keep, split="t") as it:
        next(it)
        assert gone(0)
        assert len(list(it)) == 59


@pytest.mark.parametrize("depth", [0, 1])
def test_a_failed_pass_is_over(depth):
    def prepare(batch):
        raise Boom

    for source in (batches(3), data.Prefetch(batches(60))):
        values(source)
        it = data.open_epoch(source, 0, 0, prepare=prepare, split="t", depth=depth)
        with pytest.raises(Boom):
            next(it)
        assert next(it, None) is None
        it.close()


class Boom(Exception):
    pass


class Failing(data.ArraySource):
    def batch_at(self, i, plan):
        if i == 5:
            raise Boom("no")
        return super().batch_at(i, plan)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_E07_a_worker_error_arrives_as_itself_with_split_and_index(depth):
    source = Failing({"x": np.arange(16)}, 16, 1, False, False)
    seen = []

    def read(batch):
        seen.append(int(batch["x"][0]))
        return batch

    with pytest.raises(Boom) as caught:
        values(source, prepare=read, depth=depth)
    assert seen == [0, 1, 2, 3, 4]
    assert caught.value.__notes__ == ["in split 'train', batch 5"]
    assert gone()


def test_an_error_of_prepare_arrives_as_itself_with_split_and_index():
    def prepare(batch):
        raise Boom(batch["x"][0, 0])

    with pytest.raises(Boom) as caught:
        values(batches(3), prepare=prepare, split="val", start=1)
    assert caught.value.__notes__ == ["in split 'val', batch 1"]


@pytest.mark.parametrize("depth", [0, 1])
def test_stop_iteration_inside_the_source_does_not_end_the_epoch_early(depth):
    class Exhausted(data.ArraySource):
        def batch_at(self, i, plan):
            return next(iter(())) if i == 1 else super().batch_at(i, plan)

    with pytest.raises(RuntimeError, match="StopIteration"):
        values(Exhausted({"x": np.arange(3)}, 3, 1, False, False), depth=depth)


@pytest.mark.parametrize("depth", [0, 1])
def test_stop_iteration_inside_prepare_does_not_end_the_epoch_early(depth):
    with pytest.raises(RuntimeError, match="StopIteration"):
        values(batches(3), depth=depth, prepare=lambda b: next(iter(())))


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(("given", "word"), [(2, "gave 2"), (4, "gives more")])
def test_a_source_that_gives_another_number_than_len_is_refused(depth, given, word):
    class Liar(Iterable):
        def __len__(self):
            return 3

    with pytest.raises(DataError, match="E-DATA-040") as caught:
        values(Liar(batches(given)), depth=depth)
    assert word in str(caught.value)
    assert "'train'" in str(caught.value)
    assert caught.value.exit == 1


@pytest.mark.parametrize("depth", [0, 2])
def test_none_for_a_batch_is_refused_with_its_index(depth):
    with pytest.raises(DataError, match=r"E-DATA-037.*batch 1"):
        values([*batches(1), None], depth=depth)


def test_leaving_early_ends_the_thread_and_closes_the_source():
    closed = []

    class Source(Iterable):
        def __iter__(self):
            try:
                yield from self.items
            finally:
                closed.append(True)

    it = data.open_epoch(Source(batches(50)), 0, 0, prepare=keep, split="t")
    next(it)
    it.close()
    assert gone()
    assert closed == [True]
    with pytest.raises(StopIteration):
        next(it)


def test_a_forgotten_pass_ends_its_thread():
    it = data.open_epoch(batches(50), 0, 0, prepare=keep, split="t")
    next(it)
    del it
    gc.collect()
    assert gone()


def test_teardown_does_not_wait_for_a_stuck_source():
    release = threading.Event()
    prepared = []

    class Stuck(Iterable):
        def __iter__(self):
            yield self.items[0]
            release.wait(30)
            yield self.items[1]

    it = data.open_epoch(Stuck(batches(2)), 0, 0, prepare=prepared.append, split="t")
    next(it)
    started = time.monotonic()
    it.close()
    assert time.monotonic() - started < 5
    assert all(t.daemon for t in prefetch_threads())
    release.set()
    assert gone()
    assert len(prepared) == 1


def test_waiting_for_a_slow_source_can_be_ended_by_poll():
    release = threading.Event()

    class Slow(Iterable):
        def __iter__(self):
            release.wait(30)
            return iter(self.items)

    def poll():
        raise Boom("interrupted")

    with (
        pytest.raises(Boom),
        data.open_epoch(Slow(batches(2)), 0, 0, prepare=keep, split="t", poll=poll) as it,
    ):
        next(it)
    release.set()
    assert gone()


LAYOUTS = {
    "fortran": lambda x: np.asfortranarray(x),
    "strided": lambda x: np.repeat(x, 2, 0)[::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_E02_layouts_of_batches_mean_what_numpy_means(layout):
    x = LAYOUTS[layout](np.arange(12, dtype=np.float32).reshape(4, 3))
    device = pjrt.devices("cpu")[0]

    def prepare(batch):
        return pjrt.put(batch["x"], device)

    source = [{"x": x, "scalar": np.array(3.0)}]
    with data.open_epoch(source, 0, 0, prepare=prepare, split="t") as it:
        found = pjrt.read(next(it))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.ascontiguousarray(x))
