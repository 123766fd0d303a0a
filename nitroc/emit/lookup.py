"""What to say when a name is not among those there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The close one of `known` first, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    listed = f"known: {', '.join(names)}" if names else "there are none"
    return f"did you mean {near[0]!r}? {listed}" if near else listed
