"""The report: the packed ui32 words a dispatch returns, read back as named values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nitro_runtime.manifest import ReportWord

Value = float | int | bool


class ReportReader:
    """Decodes a report by the words the manifest lists.

    f32 words are bit-cast, i64 and ui64 values take two words (high word first), i1 is a word that
    is not zero, other integers are one word.
    """

    def __init__(self, words: Sequence[ReportWord]) -> None:
        self.words = tuple(words)
        self.names = tuple(word.name for word in words)
        self._floats = [(w.name, w.index) for w in words if w.dtype == "f32"]
        self._flags = [(w.name, w.index) for w in words if w.dtype == "i1"]
        self._longs = [(w.name, w.index, w.dtype == "i64") for w in words if w.words == 2]
        done = {"f32", "i1"}
        self._ints = [
            (w.name, w.index, w.dtype.startswith("i"))
            for w in words
            if w.words == 1 and w.dtype not in done
        ]

    def __call__(self, raw: np.ndarray) -> dict[str, Value]:
        """The values of a report `ui32[R]`, or of the one step of a `ui32[1, R]`."""
        words = np.ascontiguousarray(raw).reshape(-1)
        floats = words.view(np.float32).tolist()
        signed = words.view(np.int32).tolist()
        plain = words.tolist()
        values: dict[str, Value] = {name: floats[at] for name, at in self._floats}
        values.update((name, plain[at] != 0) for name, at in self._flags)
        values.update((name, (signed if sign else plain)[at]) for name, at, sign in self._ints)
        for name, at, sign in self._longs:
            values[name] = ((signed if sign else plain)[at] << 32) | plain[at + 1]
        return values
