"""Suggestions for names that were looked up and not found."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to `name`, or None."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], what: str) -> str:
    """`did you mean width? The fields are depth, width`."""
    names = sorted(known)
    listing = f"the {what} are {', '.join(names)}" if names else f"there are no {what}"
    close = near(name, names)
    return f"did you mean {close}? {listing}" if close else listing
