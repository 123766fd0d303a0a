"""Runs of equal sub-trees in a group table: `block_{0..11}.attn.q` for twelve rows.

Consecutive lines whose text up to the first `}` is the same are one sub-tree: it is repeated,
whole, for every number in the braces. Order is kept, so that names sorted as text (`0, 1, 10, 11,
2`) come back as they were. Folding again inside a sub-tree gives `stage_{0..3}.block_{0..5}.w`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from nitro_dialect.ir import Leaf
from nitro_dialect.spelling import PATH, leaf_path

_DIGITS = re.compile(r"%[0-9A-Fa-f]{2}|[0-9]+")
_BRACES = re.compile(r"\{([0-9.,]+)\}")
_SHORTEST_RANGE = 3
_MOST = 100_000


def fold(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Rows to print: paths as they are spelled, runs replaced by one row whose path has braces."""
    return _fold([replace(leaf, path=leaf_path(leaf.path)) for leaf in leaves])


def unfold(rows: Sequence[Leaf]) -> list[Leaf]:
    """The inverse of `fold`. ValueError on braces that name no numbers, or too many."""
    return [
        replace(leaf, path=json.loads(leaf.path)) if leaf.path.startswith('"') else leaf
        for leaf in _unfold(rows)
    ]


def _fold(leaves: Sequence[Leaf]) -> list[Leaf]:
    rows: list[Leaf] = []
    last = ("", "")
    at = 0
    while at < len(leaves):
        found = _run(leaves, at)
        # Equal braces on both sides of a border would read as one sub-tree: a plain row parts them.
        if found is None or found[:2] == last:
            rows.append(leaves[at])
            last = ("", "")
            at += 1
            continue
        prefix, numbers, chunk, at = found
        rows += [replace(leaf, path=f"{prefix}{{{numbers}}}{leaf.path}") for leaf in _fold(chunk)]
        last = (prefix, numbers)
    return rows


def _unfold(rows: Sequence[Leaf]) -> list[Leaf]:
    leaves: list[Leaf] = []
    for head, lines in groupby(rows, _head):
        run = list(lines)
        if head is None:
            leaves += run
            continue
        prefix, numbers = head
        start = len(prefix) + len(numbers) + 2
        for index in _numbers(numbers):
            leaves += _unfold([replace(r, path=f"{prefix}{index}{r.path[start:]}") for r in run])
    return leaves


def _run(leaves: Sequence[Leaf], at: int) -> tuple[str, str, list[Leaf], int] | None:
    """The widest sub-tree repeated from `at`: prefix, numbers, rows after the number, its end."""
    path = leaves[at].path
    if not PATH.fullmatch(path):
        return None
    for match in _DIGITS.finditer(path):
        if match[0].startswith("%") or _padded(match[0]):
            continue
        prefix = path[: match.start()]
        end = _end(leaves, at, f"{prefix}{match[0]}")
        if _number_after(leaves, end, prefix) is None:
            continue
        chunk = _cut(leaves, at, end, f"{prefix}{match[0]}")
        numbers = [int(match[0])]
        while (number := _number_after(leaves, end, prefix)) is not None:
            start = f"{prefix}{number}"
            if _cut(leaves, end, _end(leaves, end, start), start) != chunk:
                break
            numbers.append(int(number))
            end += len(chunk)
        if len(numbers) > 1:
            return prefix, _spell(numbers), chunk, end
    return None


def _padded(digits: str) -> bool:
    return len(digits) > 1 and digits[0] == "0"


def _number_after(leaves: Sequence[Leaf], at: int, prefix: str) -> str | None:
    if at >= len(leaves) or not leaves[at].path.startswith(prefix):
        return None
    match = re.match(r"[0-9]+", leaves[at].path[len(prefix) :])
    return match[0] if match and not _padded(match[0]) else None


def _end(leaves: Sequence[Leaf], at: int, start: str) -> int:
    """Where the rows from `at` on that are `start`, or under it, end."""
    while at < len(leaves):
        path = leaves[at].path
        under = path.startswith(start) and not path[len(start) : len(start) + 1].isdigit()
        if not under or not PATH.fullmatch(path):
            return at
        at += 1
    return at


def _cut(leaves: Sequence[Leaf], at: int, end: int, start: str) -> list[Leaf]:
    return [replace(leaf, path=leaf.path[len(start) :]) for leaf in leaves[at:end]]


def _spell(numbers: Sequence[int]) -> str:
    """`0,1,10,11,2..9`: order kept, ascending runs of three and more as a range."""
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        if end - at < _SHORTEST_RANGE:
            end = at + 1
            parts.append(str(numbers[at]))
        else:
            parts.append(f"{numbers[at]}..{numbers[end - 1]}")
        at = end
    return ",".join(parts)


def _numbers(text: str) -> Iterator[int]:
    """The numbers of `0,1,10,11,2..9`, in this order."""
    for part in text.split(","):
        first, dots, last = part.partition("..")
        count = int(last if dots else first) - int(first) + 1
        if not 0 < count <= _MOST:
            raise ValueError(f"{part} is no range of 1 to {_MOST} numbers")
        yield from range(int(first), int(first) + count)


def _head(leaf: Leaf) -> tuple[str, str] | None:
    match = _BRACES.search(leaf.path) if not leaf.path.startswith('"') else None
    return (leaf.path[: match.start()], match[1]) if match else None
