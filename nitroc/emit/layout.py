"""How a group's leaves lie in buffers. Known to emission and the manifest only: never to the IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias, cast, get_args

from nitro_dialect.ir import Group, Leaf
from nitroc.emit.lookup import nearest
from nitroc.errors import BuildError

Mode: TypeAlias = Literal["auto", "flat", "leaves"]

PACK_BELOW = 4096
"""Elements. Leaves below are packed together in `auto`: measured never slower, up to 0.88x."""


@dataclass(frozen=True)
class Buffer:
    """One argument of a program: the leaves in it, each with its offset in elements.

    A packed buffer is 1-D; otherwise it has its only leaf's shape and the leaf's path as name.
    All leaves have one dtype and the same flags.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    leaves: tuple[tuple[str, int], ...]
    packed: bool

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class GroupLayout:
    """A group's buffers, in the order of their first leaf in the group's table."""

    group: Group
    buffers: tuple[Buffer, ...]

    def rows(self) -> Iterator[tuple[Buffer, tuple[tuple[Leaf, int], ...]]]:
        """Each buffer with its leaves and their offsets."""
        leaves = {leaf.path: leaf for leaf in self.group.leaves}
        for buffer in self.buffers:
            yield buffer, tuple((leaves[path], offset) for path, offset in buffer.leaves)


def plan(group: Group, mode: str) -> GroupLayout:
    """`auto` packs small leaves by (dtype, flags), `flat` all, `leaves` none.

    A group of role `outputs` is never packed: its leaves are results people read.
    BuildError 25 for another mode.
    """
    if mode not in get_args(Mode):
        raise BuildError(25, f"unknown layout {mode!r}", help=nearest(mode, get_args(Mode)))
    chosen = cast(Mode, "leaves" if group.role == "outputs" else mode)
    together: dict[tuple[str, tuple[str, ...]], list[Leaf]] = {}
    places: list[list[Leaf]] = []
    for leaf in group.leaves:
        if not _packs(leaf, chosen):
            places.append([leaf])
            continue
        key = (leaf.dtype, tuple(sorted(leaf.flags)))
        if key not in together:
            together[key] = []
            places.append(together[key])
        together[key].append(leaf)
    taken = {leaf.path for leaf in group.leaves}
    return GroupLayout(group, tuple(_buffer(p, chosen, taken) for p in places))


def _packs(leaf: Leaf, mode: Mode) -> bool:
    return mode == "flat" or (mode == "auto" and leaf.size < PACK_BELOW)


def _buffer(leaves: Sequence[Leaf], mode: Mode, taken: set[str]) -> Buffer:
    first = leaves[0]
    if not _packs(first, mode):
        return Buffer(first.path, first.dtype, first.shape, ((first.path, 0),), False)
    name = ".".join(["packed", first.dtype, *sorted(first.flags)])
    while name in taken:  # a leaf's own path may read like a packed buffer's name
        name += "."
    taken.add(name)
    offsets: list[tuple[str, int]] = []
    total = 0
    for leaf in leaves:
        offsets.append((leaf.path, total))
        total += leaf.size
    return Buffer(name, first.dtype, (total,), tuple(offsets), True)
