"""What lives on the device from step to step: parameters, slots, model state, by argument name.

Leaves are packed into buffers as the manifest's group table says; a slot over a group has the same
buffers, in its own dtype. Arrays by name are those of checkpoints: `param/<path>`, `state/<path>`,
`slot/<name>/<path>` for a slot over a group and `slot/<name>` for a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from nitro_runtime.dtypes import np_dtype
from nitro_runtime.manifest import ArgEntry, GroupEntry, Manifest

LIVING = ("param", "slot", "state")
HALTED = "halted"
"""The slot that keeps dispatches in flight from changing anything; never stored."""

_BOOLS = {"false": 0, "true": 1}


class Layout:
    """Which arrays make up the living arguments of a bundle's programs."""

    def __init__(self, manifest: Manifest) -> None:
        self._groups = {group.name: group for group in manifest.groups}
        self._slots = {slot.name: slot for slot in manifest.slots}
        self._by_role = {
            role: next((g for g in manifest.groups if g.role == role), None)
            for role in ("param", "state")
        }
        self.args = _living_args(manifest)

    def group_of(self, arg: ArgEntry) -> GroupEntry | None:
        """The group whose leaves `arg` packs; None for a slot that is a tensor."""
        if arg.role != "slot":
            group = self._by_role[arg.role]
            assert group is not None, f"no group for {arg.name}"
            return group
        slot = self._slots[arg.value]
        return None if slot.group is None else self._groups[slot.group]

    def names(self, arg: ArgEntry) -> list[str]:
        """The arrays in `arg`, in the order of its group's table."""
        group = self.group_of(arg)
        if group is None:
            return [f"slot/{arg.value}"]
        return [f"{_prefix(arg)}/{leaf.path}" for leaf in group.leaves if leaf.buffer == arg.buffer]

    def pack(self, arg: ArgEntry, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The buffer of `arg`, from arrays by name or from the slot's initial value."""
        group = self.group_of(arg)
        buffer = np.zeros(prod(arg.shape), np_dtype(arg.dtype))
        if group is None:
            stored = arrays.get(f"slot/{arg.value}")
            buffer[:] = self._number(arg) if stored is None else np.asarray(stored).reshape(-1)
            return buffer.reshape(arg.shape)
        for leaf in group.leaves:
            if leaf.buffer == arg.buffer:
                size = prod(leaf.shape)
                value = self._leaf(arg, leaf.path, arrays)
                buffer[leaf.offset : leaf.offset + size] = value
        return buffer.reshape(arg.shape)

    def _leaf(self, arg: ArgEntry, path: str, arrays: Mapping[str, np.ndarray]) -> Any:
        stored = arrays.get(f"{_prefix(arg)}/{path}")
        if stored is None and arg.role == "slot":
            if self._slots[arg.value].initial != "param":
                return self._number(arg)
            stored = arrays[f"param/{path}"]
        if stored is None:
            raise KeyError(f"{_prefix(arg)}/{path}")
        return np.asarray(stored).reshape(-1)

    def _number(self, arg: ArgEntry) -> float:
        text = self._slots[arg.value].initial
        if text == "zeros":
            return 0.0
        return _BOOLS[text] if text in _BOOLS else float(text)

    def unpack(self, arg: ArgEntry, buffer: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of a buffer read back, by name; views of it."""
        group = self.group_of(arg)
        if group is None:
            return {f"slot/{arg.value}": buffer}
        flat = buffer.reshape(-1)
        return {
            f"{_prefix(arg)}/{leaf.path}": flat[
                leaf.offset : leaf.offset + prod(leaf.shape)
            ].reshape(leaf.shape)
            for leaf in group.leaves
            if leaf.buffer == arg.buffer
        }

    def rows(self) -> list[dict[str, Any]]:
        """Every stored leaf and slot: name, shape, dtype, group, frozen. What a checkpoint's layout
        is compared by."""
        return [row for arg in self.args if arg.value != HALTED for row in self._rows(arg)]

    def _rows(self, arg: ArgEntry) -> Iterable[dict[str, Any]]:
        group = self.group_of(arg)
        if group is None:
            yield _row(f"slot/{arg.value}", arg.shape, arg.dtype, None, False)
            return
        for leaf in group.leaves:
            if leaf.buffer == arg.buffer:
                name = f"{_prefix(arg)}/{leaf.path}"
                yield _row(name, leaf.shape, arg.dtype, group.name, "frozen" in leaf.flags)


def _row(
    path: str, shape: tuple[int, ...], dtype: str, group: str | None, frozen: bool
) -> dict[str, Any]:
    return {"path": path, "shape": list(shape), "dtype": dtype, "group": group, "frozen": frozen}


def _prefix(arg: ArgEntry) -> str:
    return f"slot/{arg.value}" if arg.role == "slot" else arg.role


def _living_args(manifest: Manifest) -> list[ArgEntry]:
    """The living arguments of all programs, the train program's first."""
    order = sorted(manifest.programs.values(), key=lambda p: p.role != "train_step")
    found: dict[str, ArgEntry] = {}
    for program in order:
        for arg in program.args:
            if arg.role in LIVING:
                found.setdefault(arg.name, arg)
    return list(found.values())
