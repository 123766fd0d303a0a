"""Tensor files: every dtype there and back, canonical bytes, headers checked before use."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from nitro_runtime.dtypes import NUMPY_DTYPES, np_dtype
from nitro_runtime.tensors import TensorFileError, read_header, read_tensors, write_tensors

STORABLE = sorted(NUMPY_DTYPES.keys() - {"c128"})


@given(st.data())
def test_reading_is_the_inverse_of_writing(data: st.DataObject) -> None:
    arrays: dict[str, Any] = {}
    for name in data.draw(st.lists(st.text("abé/%", min_size=1), unique=True, max_size=4)):
        dtype = np_dtype(data.draw(st.sampled_from(STORABLE)))
        shape = data.draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
        raw = data.draw(st.integers(0, 2**32 - 1))
        values = np.random.default_rng(raw).integers(0, 2, (*shape, dtype.itemsize), np.uint8)
        arrays[name] = values.reshape(-1).view(dtype).reshape(shape)
    content = write_tensors(arrays)
    again = read_tensors(content)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        assert again[name].shape == array.shape
        assert again[name].tobytes() == array.tobytes()
    assert write_tensors(again) == content


def test_the_official_library_writes_the_same_bytes() -> None:
    arrays = {
        "b": np.arange(6.0).reshape(2, 3),
        "a": np.ones(3, np_dtype("bf16")),
        "f8": np.ones(3, np_dtype("f8E4M3FN")),
        "empty": np.zeros((0, 2), np.int32),
        "flag": np.array(True),
    }
    assert write_tensors(arrays) == safetensors.numpy.save(arrays)


def test_layout_and_byte_order_do_not_matter() -> None:
    plain = np.arange(6, dtype=np.int32).reshape(2, 3)
    for same in (np.asfortranarray(plain), plain.astype(">i4"), np.repeat(plain, 2, 1)[:, ::2]):
        assert write_tensors({"x": same}) == write_tensors({"x": plain})


def test_arrays_are_read_only_views() -> None:
    array = read_tensors(write_tensors({"x": np.ones(3)}))["x"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2


def test_metadata() -> None:
    content = write_tensors({"x": np.ones(1)}, {"b": "2", "a": "1"})
    assert read_header(content)[1] == {"a": "1", "b": "2"}


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.ones(1, complex)])
def test_dtypes_no_file_holds(array: Any) -> None:
    with pytest.raises(TensorFileError, match="x: no tensor file holds dtype"):
        write_tensors({"x": array})


def _file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _entry(start: int, stop: int, shape: list[Any], dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "too few"),
        (b"\xff" * 8, "a header of"),
        ((10**8 + 1).to_bytes(8, "little") + b" " * 9, "a header of"),
        (_file({})[:-1], "a header of"),
        (_file(b"[]"), "expected an object"),
        (_file(b'{"a":1,"a":1}'), "duplicate key"),
        (_file(b"\xff"), "UTF-8"),
        (_file({"__metadata__": {"a": 1}}), "__metadata__"),
        (_file({"x": 1}), "x: expected an object"),
        (_file({"x": {"dtype": "F32"}}), "expected the keys"),
        (_file({"x": _entry(0, 4, [1], "F99")}, b"1234"), "unknown dtype 'F99'"),
        (_file({"x": _entry(0, 4, [1], [])}, b"1234"), "unknown dtype"),
        (_file({"x": _entry(0, 4, [True])}, b"1234"), "shape"),
        (_file({"x": _entry(0, 4, [-1])}, b"1234"), "shape"),
        (_file({"x": _entry(0, 4, [2**62, 0])}, b"1234"), "too large"),
        (_file({"x": _entry(0, 8, [1])}, b"12345678"), "takes 4 bytes, found 8"),
        (_file({"x": _entry(4, 0, [1])}, b"1234"), "takes 4 bytes"),
        (_file({"x": _entry(0, 4, [1])}, b"12345"), "end at byte 4 of 5"),
        (_file({"x": _entry(0, 4, [1])}, b"123"), "end at byte 4 of 3"),
        (_file({"x": _entry(4, 8, [1])}, b"12345678"), "hole"),
        (_file({"x": _entry(0, 8, [2]), "y": _entry(4, 8, [1])}, b"12345678"), "overlaps"),
    ],
)
def test_malformed_files(content: bytes, said: str) -> None:
    with pytest.raises(TensorFileError, match=said):
        read_header(content)
