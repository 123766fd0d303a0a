"""Rows of the conformance list on batches and sources, as far as setup decides them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from declared import batches, refused, set_up, tiny

from nitro_runtime.data.arrays import arrays
from nitro_runtime.data.schema import conform, look, make_schema, narrow
from nitro_runtime.errors import DataError

X = np.arange(24, dtype=np.float32).reshape(8, 3)
TEXTS = list("abcdefgh")


def mixed() -> list[dict[str, Any]]:
    return [{"x": X, "label": np.zeros(8, np.int32), "id": TEXTS, "path": TEXTS, "none": None}]


def test_E01_what_is_not_numeric_stays_on_the_host_untouched() -> None:
    train = mixed()
    setup = set_up(tiny(train))
    assert set(setup.schema["train"].fields) == {"x", "label"}
    assert set(setup.schema["train"].unrouted) == {"id", "path", "none"}
    assert train[0]["id"] is TEXTS
    assert train[0]["x"] is X


def loss_of_id(self: Any, outputs: Any, *, id: Any) -> Any: ...
def loss_of_rest(self: Any, outputs: Any, **fields: Any) -> Any: ...


def test_E01_a_traced_hook_asking_for_text() -> None:
    error = refused("E-DATA-003", lambda: set_up(tiny(mixed(), loss=loss_of_id)))
    assert "hook loss" in error.what
    assert "'id', which is list of str" in error.what
    as_array = [{**mixed()[0], "id": np.array(TEXTS)}]
    error = refused("E-DATA-003", lambda: set_up(tiny(as_array, loss=loss_of_id)))
    assert "dtype <U1" in error.what
    objects = [{**mixed()[0], "id": np.array([{}] * 8)}]
    assert (
        "dtype object" in refused("E-DATA-003", lambda: set_up(tiny(objects, loss=loss_of_id))).what
    )


def test_E01_open_fields_get_the_numeric_ones_only() -> None:
    train = [{name: value for name, value in mixed()[0].items() if name != "label"}]
    setup = set_up(tiny(train, loss=loss_of_rest))
    assert setup.routing["loss"].fields == ("x",)


def test_E01_a_field_named_key_is_refused() -> None:
    train = [{**mixed()[0], "key": X}]
    assert "'key'" in refused("E-DATA-002", lambda: set_up(tiny(train))).what


BASE = np.arange(48, dtype=np.float64).reshape(8, 6)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(BASE),
        BASE[:, ::2],
        BASE[::-1],
        BASE[::-1, ::-2],
        np.broadcast_to(BASE[:1], (8, 6)),
        BASE.astype(">f8"),
        BASE.astype(">i4"),
        BASE.reshape(8, 2, 3).transpose(0, 2, 1),
        np.array(3.5, dtype=">f8"),
    ],
)
def test_E02_any_layout_means_what_it_means_in_numpy(array: Any) -> None:
    found = narrow(array)
    assert found.shape == array.shape
    assert found.tolist() == array.tolist()
    assert found.flags.c_contiguous
    assert found.dtype.isnative
    if array.ndim:
        schema = make_schema(look([{"x": array}], "train", 0), ["x"])
        assert conform({"x": array}, schema, "train", 0)["x"].tolist() == array.tolist()


def test_E03_a_wide_integer_that_does_not_fit() -> None:
    train = batches(label=np.array([0, 1, 4294967296, 0]))
    error = refused("E-DATA-004", lambda: set_up(tiny(train)))
    assert "'label'" in error.what
    assert "4294967296" in error.what


def test_E03_float64_becomes_f32_said_once_and_one_shape() -> None:
    narrow_first = [*batches(1), *batches(1, x=np.ones((4, 3)))]
    setup = set_up(tiny(batches(x=np.ones((4, 3)))))
    assert str(setup.schema["train"].fields["x"]) == "f32[3]"
    assert setup.report.text().count("f32[3] per row, from float64") == 1
    schema = set_up(tiny(narrow_first)).schema["train"]
    assert conform(narrow_first[1], schema, "train", 1)["x"].dtype == np.float32


def test_E04_an_unsigned_field_arrives_unsigned() -> None:
    train = batches(x=np.array([[10, 250, 0]] * 4, np.uint8))
    schema = set_up(tiny(train)).schema["train"]
    assert str(schema.fields["x"]) == "ui8[3]"
    assert conform(train[0], schema, "train", 0)["x"].tolist() == [[10, 250, 0]] * 4


def rows(count: int, **options: Any) -> Any:
    fields = {"x": np.zeros((count, 3), np.float32), "label": np.zeros(count, np.int32)}
    return arrays(fields, 4, **options)


def test_E05_a_short_last_train_batch_is_refused_or_dropped_as_the_loader_says() -> None:
    error = refused("E-DATA-013", lambda: set_up(tiny(rows(10))))
    assert "2 rows, the others 4" in error.what
    assert error.help is not None
    assert "drop_last" in error.help
    assert "2 rows dropped" in set_up(tiny(rows(10, drop_last=True))).report.text()


def test_E05_evaluation_is_complete_or_says_what_no_metric_sees() -> None:
    def report(val: Any) -> str:
        both = {"train": rows(8), "val": val}
        return set_up(tiny(build_data=lambda self: both)).report.text()

    assert "the last of 2" in report(rows(10))
    assert "2 rows dropped: no metric sees them" in report(rows(10, drop_last=True))


def test_E06_a_generator_names_the_split() -> None:
    def generator() -> Iterator[dict[str, Any]]:
        yield from batches()

    error = refused("E-DATA-032", lambda: set_up(tiny(generator())))
    assert error.where == "split 'train'"


def test_E06_an_empty_split() -> None:
    error = refused("E-DATA-035", lambda: set_up(tiny([])))
    assert error.where == "split 'train'"


def test_E12_without_data_there_is_no_schema_and_no_horizon() -> None:
    setup = set_up(tiny(derive=lambda self, data: pytest.fail("derive was called")), data={})
    assert (setup.schema, setup.splits, setup.horizon) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (np.zeros((4, 5), np.float32), "f32[5] per row, expected f32[3]"),
        (np.zeros((4, 3, 1), np.float32), "f32[3,1] per row, expected f32[3]"),
        (np.zeros((6, 3), np.float32), "different numbers of rows"),
    ],
)
def test_B09_a_last_batch_of_another_shape_is_found_at_setup(second: Any, says: str) -> None:
    train = [*batches(1), {**batches(1)[0], "x": second}]
    with pytest.raises(DataError, match="split 'train', batch 1") as caught:
        set_up(tiny(train))
    assert says in str(caught.value)


def test_the_data_is_a_dict_of_splits_with_train() -> None:
    assert refused("E-DATA-010", lambda: set_up(tiny(build_data=lambda self: batches())))
    named = tiny(build_data=lambda self: {"trian": batches()})
    error = refused("E-DATA-010", lambda: set_up(named))
    assert error.help is not None
    assert "did you mean trian?" in error.help
