"""The report: the packed ui32 words a dispatch returns, read back as named values."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import numpy as np

from nitro_runtime.manifest import ReportWord

Value = float | int | bool


class ReportReader:
    """Decodes a report by the words the manifest lists, one after the other from word 0.

    f32 words are bit-cast, i64 and ui64 values take two words (high word first), i1 is a word that
    is not zero, other integers are one word.
    """

    def __init__(self, words: Sequence[ReportWord]) -> None:
        ends = itertools.accumulate((word.words for word in words), initial=0)
        assert all(word.index == at for word, at in zip(words, ends, strict=False)), words
        self.words = tuple(words)
        self.names = tuple(word.name for word in words)
        # One call reads every value in place; what needs more is mended after.
        self._unpack = struct.Struct("=" + "".join(map(_format, words))).unpack_from
        self._flags = [i for i, w in enumerate(words) if w.dtype == "i1"]
        self._longs = [(i, w.dtype == "i64") for i, w in enumerate(words) if w.words == 2]

    def __call__(self, raw: np.ndarray) -> dict[str, Value]:
        """The values of a report `ui32[R]`, or of the one step of a `ui32[1, R]`."""
        values: list[Value] = list(self._unpack(raw.tobytes()))
        for at in self._flags:
            values[at] = values[at] != 0
        for at, signed in self._longs:
            swapped = int(values[at])
            value = (swapped & 0xFFFFFFFF) << 32 | swapped >> 32
            values[at] = value - (1 << 64) if signed and value >> 63 else value
        return dict(zip(self.names, values, strict=True))


def _format(word: ReportWord) -> str:
    """One value as `struct` reads it; 64 bits with their words in the order of the report."""
    if word.words == 2:
        return "Q"
    if word.dtype == "f32":
        return "f"
    return "i" if word.dtype.startswith("i") and word.dtype != "i1" else "I"
