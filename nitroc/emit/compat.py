"""Which StableHLO version a program is written for."""

from __future__ import annotations

import re

from nitroc.emit import mlir
from nitroc.errors import BuildError


def resolve_compat(text: str | None = None) -> str:
    """`max`, `current` or `M.m.p` as a version; None: the one of 12 weeks ago.

    `max` is the oldest version that can be written: most readers, fewest ops. BuildError 21 for
    anything else, and for a version outside what this jaxlib can write.
    """
    known = mlir.versions()
    if text is None:
        return known["12 weeks"]
    if text in ("max", "current"):
        return known[text]
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise BuildError(
            21,
            f"unknown StableHLO version {text!r}; expected max, current or M.m.p",
            help=f"default: {known['12 weeks']}, the version of 12 weeks ago",
        )
    if not _key(known["max"]) <= _key(text) <= _key(known["current"]):
        raise BuildError(
            21,
            f"StableHLO {text} can't be written by this jaxlib",
            help=f"choose a version from {known['max']} to {known['current']}",
        )
    return text


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
