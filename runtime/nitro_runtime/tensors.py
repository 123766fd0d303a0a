"""Named tensors in one file, in the safetensors format, with bf16 and fp8.

Format: 8 bytes little-endian header size, a JSON header `{name: {dtype, shape, data_offsets}}` and
the data end to end. The header is checked whole before any tensor is looked at. Writing is
canonical: equal arrays give equal bytes, and the official library reads them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from nitro_runtime.canonical import CanonicalError, Json, parse
from nitro_runtime.dtypes import np_dtype, spell

MAX_HEADER = 100_000_000
"""Bytes; the bound the official library has."""

_CODES = {
    "f64": "F64",
    "f32": "F32",
    "bf16": "BF16",
    "f16": "F16",
    "f8E4M3FN": "F8_E4M3",
    "f8E5M2": "F8_E5M2",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "ui64": "U64",
    "ui32": "U32",
    "ui16": "U16",
    "ui8": "U8",
    "i1": "BOOL",
    "c64": "C64",
}
_SPELLINGS = {code: spelling for spelling, code in _CODES.items()}


class TensorFileError(ValueError):
    """The bytes are no well-formed tensor file, or an array has no form in one."""


@dataclass(frozen=True)
class TensorHeader:
    """A tensor's IR dtype, shape, and its first and past-the-last byte in the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def __str__(self) -> str:
        return spell(self.dtype, self.shape)


def read_header(data: bytes) -> tuple[dict[str, TensorHeader], dict[str, str]]:
    """The tensors' headers by name and the file's metadata; checks everything but the values.

    Raises:
        TensorFileError: truncated, an oversized or malformed header, an unknown dtype, a size that
            is not the shape's, a hole, an overlap or bytes left over.
    """
    tensors, metadata, _ = _header(data)
    return tensors, metadata


def read_tensors(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors by name, as read-only views of `data`.

    Raises:
        TensorFileError: as `read_header`.
    """
    tensors, _, base = _header(data)
    return {name: _view(data, base, header) for name, header in tensors.items()}


def write_tensors(
    arrays: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The canonical file of `arrays`: widest dtype first, then by name.

    Raises:
        TensorFileError: an array of a dtype the format lacks (c128, text, objects).
    """
    headers: dict[str, Json] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    chunks: list[bytes] = []
    offset = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        chunk = _bytes(array)
        headers[name] = {
            "dtype": _code(name, array),
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(chunk)],
        }
        offset += len(chunk)
        chunks.append(chunk)
    text = json.dumps(headers, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *chunks])


def _code(name: str, array: np.ndarray[Any, Any]) -> str:
    wanted = array.dtype.newbyteorder("=")
    for spelling, code in _CODES.items():
        if np_dtype(spelling) == wanted:
            return code
    raise TensorFileError(f"{name}: no tensor file holds dtype {array.dtype}")


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.byteswap()
    return array.tobytes()


def _view(data: bytes, base: int, header: TensorHeader) -> np.ndarray[Any, Any]:
    dtype = np_dtype(header.dtype)
    flat = np.frombuffer(data, np.uint8, header.stop - header.start, base + header.start)
    if sys.byteorder == "big":
        flat = flat.view(dtype).byteswap().view(np.uint8)
    return flat.view(dtype).reshape(header.shape)


def _header(data: bytes) -> tuple[dict[str, TensorHeader], dict[str, str], int]:
    if len(data) < 8:
        raise TensorFileError(f"{len(data)} bytes are too few for a header")
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER or 8 + size > len(data):
        bound = min(MAX_HEADER, len(data) - 8)
        raise TensorFileError(f"a header of {size} bytes, expected at most {bound}")
    try:
        header = parse(data[8 : 8 + size])
    except CanonicalError as error:
        raise TensorFileError(f"header: {error}") from error
    if not isinstance(header, dict):
        raise TensorFileError("header: expected an object")
    entries = cast(dict[str, Json], header)
    metadata = _metadata(entries.pop("__metadata__", {}))
    tensors = {name: _entry(name, entry) for name, entry in entries.items()}
    _check_cover(tensors, len(data) - 8 - size)
    return tensors, metadata, 8 + size


def _metadata(value: Json) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TensorFileError("__metadata__: expected an object of strings")
    items = cast(dict[str, Json], value)
    if not all(isinstance(item, str) for item in items.values()):
        raise TensorFileError("__metadata__: expected an object of strings")
    return cast(dict[str, str], items)


def _entry(name: str, value: Json) -> TensorHeader:
    if not isinstance(value, dict):
        raise TensorFileError(f"{name}: expected an object")
    entry = cast(dict[str, Json], value)
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise TensorFileError(f"{name}: expected the keys dtype, shape, data_offsets")
    dtype = _SPELLINGS.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise TensorFileError(f"{name}: unknown dtype {entry['dtype']!r}")
    shape = _sizes(name, "shape", entry["shape"])
    offsets = _sizes(name, "data_offsets", entry["data_offsets"])
    if len(offsets) != 2:
        raise TensorFileError(f"{name}: data_offsets: expected two numbers")
    header = TensorHeader(dtype, shape, *offsets)
    if prod(max(1, dim) for dim in shape) >= 2**60:
        raise TensorFileError(f"{name}: the shape {shape} is too large")
    size = prod(shape) * np_dtype(dtype).itemsize
    if header.stop - header.start != size:
        found = header.stop - header.start
        raise TensorFileError(f"{name}: {header} takes {size} bytes, found {found}")
    return header


def _sizes(name: str, key: str, value: Json) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TensorFileError(f"{name}: {key}: expected an array")
    sizes = cast(list[Json], value)
    if len(sizes) > 64 or not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
        raise TensorFileError(f"{name}: {key}: expected at most 64 sizes, none negative")
    return tuple(sizes)


def _check_cover(tensors: dict[str, TensorHeader], size: int) -> None:
    """The tensors cover the data once, without a hole."""
    at = 0
    for name, header in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if header.start != at:
            problem = "overlaps another tensor" if header.start < at else "leaves a hole before it"
            raise TensorFileError(f"{name}: starts at byte {header.start}, {problem}")
        at = header.stop
    if at != size:
        raise TensorFileError(f"the tensors end at byte {at} of {size}")
