"""Placing and reading arrays: never shared memory, numpy's meaning, all dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_runtime import dtypes, pjrt
from nitro_runtime.errors import DataError, DeviceError

DEVICE = pjrt.devices("cpu")[0]


def aligned(count, dtype=np.float32, alignment=64):
    """An array whose first byte is aligned: the case in which backends share memory."""
    size = np.dtype(dtype).itemsize * count
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype)


@pytest.mark.parametrize("count", [1, 16, 2048, 1 << 20])
def test_a_ring_of_aligned_buffers_may_be_refilled_at_once(count):
    ring = [aligned(count) for _ in range(2)]
    assert all(buffer.ctypes.data % 64 == 0 for buffer in ring)
    placed = []
    for i in range(8):
        buffer = ring[i % 2]
        buffer[:] = i
        placed.append(pjrt.put(buffer, DEVICE))
    for buffer in ring:
        buffer[:] = -1
    assert [float(pjrt.read(a)[-1]) for a in placed] == list(range(8))


@pytest.mark.parametrize("name", sorted(dtypes.NUMPY_DTYPES))
def test_every_dtype_comes_back_as_it_went(name):
    x = np.array([0, 1, 3]).astype(dtypes.np_dtype(name))
    found = pjrt.read(pjrt.put(x, DEVICE))
    assert found.dtype == x.dtype
    assert found.tobytes() == x.tobytes()


def test_64_bits_are_kept_without_the_x64_option():
    big = np.array([2**40 + 1, -(2**62)], np.int64)
    assert pjrt.read(pjrt.put(big, DEVICE)).tolist() == big.tolist()
    fine = np.array(1 + 2.0**-50)
    assert pjrt.read(pjrt.put(fine, DEVICE)) == fine


@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    order=st.sampled_from("CF"),
    swapped=st.booleans(),
    reverse=st.booleans(),
    data=st.data(),
)
def test_E02_any_layout_means_what_numpy_means(shape, order, swapped, reverse, data):
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "f8", "i2", "i8", "u4", "c8", "?"])))
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype, order=order)
    x = x.astype(dtype.newbyteorder(">" if swapped else "="))
    if reverse and x.ndim:
        x = x[::-1]
    found = pjrt.read(pjrt.put(x, DEVICE))
    assert found.dtype == dtypes.native(x.dtype)
    assert found.shape == x.shape
    np.testing.assert_array_equal(found, x)


def test_E02_broadcast_strided_transposed_and_unaligned_arrays():
    odd = np.frombuffer(b"x" + np.arange(6, dtype=np.float32).tobytes(), np.uint8)[1:]
    for x in (
        np.broadcast_to(np.float32(3), (2, 5)),
        np.arange(24.0).reshape(2, 3, 4)[:, ::2, 1::2],
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        odd.view(np.float32),
    ):
        np.testing.assert_array_equal(pjrt.read(pjrt.put(x, DEVICE)), x)


def test_placing_converts_within_a_kind_only():
    assert pjrt.read(pjrt.put(np.float64(0.1), DEVICE, "f32")) == np.float32(0.1)
    assert pjrt.read(pjrt.put(3, DEVICE, "i32")).dtype == np.int32
    assert pjrt.read(pjrt.put(np.float32(1.5), DEVICE, "bf16")).dtype == ml_dtypes.bfloat16
    with pytest.raises(DeviceError, match="E-DEVICE-032"):
        pjrt.put(np.float32(1.5), DEVICE, "i32")


@pytest.mark.parametrize("x", [np.array("a"), np.array([None]), np.array("2020", "M8[D]")])
def test_what_no_program_holds_is_not_placed(x):
    with pytest.raises(DataError, match="E-DATA-030"):
        pjrt.put(x, DEVICE)


def test_reading_gives_an_array_of_its_own():
    placed = pjrt.put(np.arange(3.0), DEVICE)
    first = pjrt.read(placed)
    first[:] = 9
    assert pjrt.read(placed).tolist() == [0, 1, 2]
    assert first.flags.owndata
    pjrt.start_read(placed)
    assert pjrt.read(placed).tolist() == [0, 1, 2]


def test_a_deleted_array_is_not_read():
    placed = pjrt.put(np.arange(3.0), DEVICE)
    pjrt.delete(placed)
    pjrt.delete(placed)
    with pytest.raises(DeviceError, match="E-DEVICE-025"):
        pjrt.read(placed)


def test_dtype_names_suggest_the_near_miss():
    with pytest.raises(DataError, match=r"E-DATA-031.*'u32'") as caught:
        dtypes.np_dtype("u32")
    assert "did you mean 'ui32'" in str(caught.value)
    assert dtypes.ir_dtype(np.dtype(">i8")) == "i64"
    assert not dtypes.has_ir_dtype(np.dtype("O"))
    assert dtypes.spell("f32", (2, 3)) == "f32[2,3]"
    assert dtypes.spell("f32", ()) == "f32"
