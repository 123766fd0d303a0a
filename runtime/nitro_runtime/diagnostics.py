"""Which diagnostics a run asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from nitro_runtime.errors import UsageError, near
from nitro_runtime.machine import SAMPLED
from nitro_runtime.manifest import Manifest


@dataclass(frozen=True)
class Selection:
    """The diagnostics that a run asked for: their keys, and the mask of the sampled program."""

    keys: tuple[str, ...]
    mask: np.ndarray


def select(manifest: Manifest, patterns: Sequence[str]) -> Selection | None:
    """The diagnostics whose names fit a pattern; None without patterns.

    E-USAGE-068 for a pattern that fits none of the train program's.
    """
    if not patterns:
        return None
    all_ = [(k, e) for k, e in manifest.guards.placed.items() if e.kind == "diagnostic"]
    names = list(dict.fromkeys(e.name for _, e in all_ if SAMPLED in e.programs))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                68,
                f"no diagnostic fits {pattern!r}{near(pattern, names)}",
                where="option diagnostics",
                help=f"the diagnostics of the train program: {', '.join(names) or 'none'}",
            )
    chosen = [
        SAMPLED in entry.programs and any(fnmatchcase(entry.name, p) for p in patterns)
        for _, entry in all_
    ]
    keys = tuple(key for (key, _), taken in zip(all_, chosen, strict=True) if taken)
    return Selection(keys, np.array(chosen, np.bool_))
