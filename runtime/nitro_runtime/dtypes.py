"""The dtypes a program may hold, by their IR spelling, and numpy's dtype of each."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from nitro_runtime.errors import DataError

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "f64": np.dtype(np.float64),
        "f32": np.dtype(np.float32),
        "bf16": np.dtype(ml_dtypes.bfloat16),
        "f16": np.dtype(np.float16),
        "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
        "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
        "i64": np.dtype(np.int64),
        "i32": np.dtype(np.int32),
        "i16": np.dtype(np.int16),
        "i8": np.dtype(np.int8),
        "ui64": np.dtype(np.uint64),
        "ui32": np.dtype(np.uint32),
        "ui16": np.dtype(np.uint16),
        "ui8": np.dtype(np.uint8),
        "i1": np.dtype(np.bool_),
        "c64": np.dtype(np.complex64),
        "c128": np.dtype(np.complex128),
    }
)
"""Every dtype of the dialect, in native byte order."""

_SPELLINGS = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """`dtype` in this machine's byte order."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def has_ir_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether a program can hold values of `dtype`, whatever its byte order."""
    return native(dtype) in _SPELLINGS


def ir_dtype(dtype: np.dtype[Any] | type[Any]) -> str:
    """The IR spelling of `dtype`; raises E-DATA-030 when a program can't hold it."""
    given = np.dtype(dtype)
    spelling = _SPELLINGS.get(native(given))
    if spelling is None:
        raise DataError(
            30,
            f"no program holds values of dtype {given}",
            help=f"convert to one of {', '.join(NUMPY_DTYPES)}",
        )
    return spelling


def np_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of the IR spelling `name`; raises E-DATA-031 for an unknown one."""
    dtype = NUMPY_DTYPES.get(name)
    if dtype is None:
        near = difflib.get_close_matches(name, NUMPY_DTYPES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(
            31, f"unknown dtype {name!r}", help=f"{hint}the dtypes are {', '.join(NUMPY_DTYPES)}"
        )
    return dtype


def spell(dtype: str, shape: tuple[int, ...]) -> str:
    """`f32[2,32]`, or `f32` for a scalar."""
    return f"{dtype}[{','.join(map(str, shape))}]" if shape else dtype
