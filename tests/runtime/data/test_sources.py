"""Sources: what is one, what a probe shows, what is refused and how it is named."""

from __future__ import annotations

import numpy as np
import pytest

from nitro_runtime import data
from nitro_runtime.errors import DataError


def batches(count, rows=2):
    return [{"x": np.full((rows, 3), i, np.float32)} for i in range(count)]


class Iterable:
    def __init__(self, items):
        self.items = items
        self.started = 0

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        self.started += 1
        return iter(self.items)


class Reseeded(Iterable):
    def set_epoch(self, epoch, seed):
        self.items = self.items[epoch:] + self.items[:epoch]


def refused(number, function, *args):
    with pytest.raises(DataError) as caught:
        function(*args)
    assert caught.value.code == f"E-DATA-{number:03d}"
    return str(caught.value)


def test_E06_a_generator_is_refused_naming_the_split():
    message = refused(32, data.check_source, (b for b in batches(2)), "train")
    assert "'train'" in message
    assert "generator" in message


def test_E06_an_empty_list_is_refused_naming_the_split():
    assert "'val'" in refused(35, data.check_source, [], "val")


def test_a_source_whose_rows_make_no_batch_says_so():
    source = data.arrays({"x": np.zeros((3, 2))}, 4, drop_last=True)
    assert "3 rows make no batch of 4" in refused(35, data.check_source, source, "train")


def test_a_source_without_len_is_refused():
    class Endless:
        def __iter__(self):
            return iter(batches(1))

    assert "'test'" in refused(34, data.check_source, Endless(), "test")


@pytest.mark.parametrize("thing", [3, {"x": np.zeros(3)}, np.zeros((3, 2)), "train.npz"])
def test_what_is_no_source_is_refused(thing):
    refused(33, data.check_source, thing, "train")


def test_a_batch_of_no_rows_is_refused_by_the_probe():
    refused(39, data.probe, [{"x": np.zeros((0, 3))}], "train")


def test_a_batch_without_batch_axis_is_refused_by_the_probe():
    assert "'x'" in refused(38, data.probe, [{"x": np.float32(1)}], "train")


@pytest.mark.parametrize("batch", [np.zeros(3), (1, 2), {1: np.zeros(3)}])
def test_a_batch_that_is_no_dict_of_fields_is_refused(batch):
    refused(36, data.probe, [batch], "train")


def test_a_probe_of_an_iterable_reads_one_batch_and_leaves_the_rest():
    source = Iterable(batches(3))
    probe = data.probe(source, "train")
    assert (probe.batches, probe.last_rows) == (3, None)
    assert probe.first is source.items[0]
    assert [b["x"][0, 0] for b in source] == [0, 1, 2]


def test_a_probe_of_an_iterable_of_one_batch_knows_the_last():
    assert data.probe(Iterable(batches(1, rows=5)), "val").last_rows == 5


def test_a_probe_closes_the_iteration_it_began():
    closed = []

    class Source(Iterable):
        def __iter__(self):
            try:
                yield from self.items
            finally:
                closed.append(True)

    data.probe(Source(batches(3)), "train")
    assert closed == [True]


def test_a_probe_of_an_iterable_that_gives_nothing_is_refused():
    class Liar(Iterable):
        def __len__(self):
            return 3

    assert "3" in refused(35, data.probe, Liar([]), "train")


def test_a_probe_sees_the_short_last_batch_of_arrays_and_lists():
    source = data.arrays({"x": np.zeros((10, 3)), "id": list("abcdefghij")}, 4)
    probe = data.probe(data.Prefetch(source), "train")
    assert (probe.batches, probe.last_rows, data.rows(probe.first, "train")) == (3, 2, 4)
    assert data.probe(batches(2) + batches(1, rows=1), "val").last_rows == 1


def test_rows_come_from_lists_where_there_is_no_array():
    assert data.rows({"none": None, "id": ["a", "b"]}, "train") == 2


def test_order_is_exact_for_addressable_reseeded_and_lists_only():
    assert data.order(data.arrays({"x": np.zeros(4)}, 2)).exact
    assert data.order(Reseeded(batches(2))).exact
    assert data.order(batches(2)).exact
    plain = data.order(Iterable(batches(2)))
    assert not plain.exact
    assert plain.note == "order not reproducible, resume continues at the next epoch"


def test_order_names_the_missing_half_and_the_option():
    class Half(Iterable):
        def begin_epoch(self, epoch, seed):
            return None

    assert "begin_epoch without batch_at" in (data.order(Half(batches(2))).note or "")
    unordered = data.order(data.Prefetch(batches(2), ordered=False))
    assert not unordered.exact
    assert "ordered=False" in (unordered.note or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 0),
        ("workers", "process:0"),
        ("workers", "thread:2"),
        ("device_batches", 0),
        ("host_batches", -1),
        ("device_batches", 1.5),
        ("device_batches", True),
    ],
)
def test_prefetch_below_one_is_refused_by_name(name, value):
    message = refused(44, lambda: data.Prefetch(batches(2), **{name: value}))
    assert name in message
    assert repr(value) in message


def test_wrappers_pass_straight_through():
    items = batches(3)
    for wrapper in (data.Prefetch(items, workers="process:2"), data.NoPrefetch(items)):
        assert len(wrapper) == 3
        assert list(wrapper) == items
        assert data.unwrap(data.NoPrefetch(wrapper)) is items


def test_prefetch_says_that_one_thread_does_the_work_of_many():
    assert "workers=4" in (data.Prefetch(batches(1), workers=4).note or "")
    assert data.Prefetch(batches(1)).note is None


def test_dropped_rows_are_what_the_source_says():
    assert data.dropped_rows(data.arrays({"x": np.zeros(10)}, 4, drop_last=True)) == 2
    assert data.dropped_rows(data.arrays({"x": np.zeros(10)}, 4)) == 0
    assert data.dropped_rows(batches(1)) == 0


def test_check_batch_at_finds_a_sample_index_taken_for_a_batch_index():
    class Wrong(data.ArraySource):
        def batch_at(self, i, plan):
            return {"x": np.arange(10.0)[i : i + self.batch_size]}

    good = data.arrays({"x": np.arange(10.0)}, 5, shuffle=True)
    data.check_batch_at(good, values=True)
    wrong = Wrong({"x": np.arange(10.0)}, 10, 5, False, False)
    wrong.__class__.__iter__ = lambda self: iter(data.arrays({"x": np.arange(10.0)}, 5))
    data.check_batch_at(wrong)
    assert "batch 1, field 'x'" in refused(45, data.check_batch_at, wrong, True)


def test_check_batch_at_finds_shapes_fields_and_counts():
    class Wrong(Iterable):
        found = None

        def begin_epoch(self, epoch, seed):
            return None

        def batch_at(self, i, plan):
            return self.found

    wrong = Wrong(batches(2))
    wrong.found = {"x": np.zeros((2, 4), np.float32)}
    assert "float32[2, 4]" in refused(45, data.check_batch_at, wrong)
    wrong.found = {"y": np.zeros((2, 3), np.float32)}
    assert "fields" in refused(45, data.check_batch_at, wrong)
    assert "no begin_epoch" in refused(45, data.check_batch_at, Iterable(batches(1)))
