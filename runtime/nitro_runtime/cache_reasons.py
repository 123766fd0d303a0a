"""Why a program was compiled: its ingredients against those of the nearest one known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST = 4
_HOOK = "hook "


@dataclass(frozen=True)
class Ingredients:
    """`named` by the compiler; `made_for`: platform, jaxlib, CPU features, flags, device."""

    named: Mapping[str, str]
    made_for: Mapping[str, str]


def role_of(named: Mapping[str, str]) -> str:
    """The program's name without its sizes: `reduce.b32.r7` is a `reduce`."""
    return re.sub(r"(\.[a-z]+\d+)+$", "", named.get("program", "program"))


def explain(program: Ingredients, known: Sequence[Ingredients]) -> str:
    """`first use`, or how `program` differs from the nearest of `known` (the last, of several);
    those of its own sizes come first.

    `GraphConst width 128 -> 256`, `hook loss changed (exp.py:41)`, `batch img f32[32,64] ->
    f32[64,64]`, joined by `, `.
    """
    own = program.named.get("experiment")
    near = [k for k in known if k.named.get("experiment") == own]
    if not near:
        return "first use"
    size = program.named.get("program")
    near = [k for k in near if k.named.get("program") == size] or near
    differences = min((_differences(k, program) for k in reversed(near)), key=len)
    if not differences:
        return "program text changed"
    more = len(differences) - _MOST
    return ", ".join(differences[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _differences(old: Ingredients, new: Ingredients) -> list[str]:
    named = _changes(old.named, new.named)
    # The name repeats the sizes; it tells something only where nothing else does.
    telling = {name: change for name, change in named.items() if name != "program"} or named
    return [*telling.values(), *_changes(old.made_for, new.made_for).values()]


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    names = list(dict.fromkeys([*new, *old]))
    changes = {name: _change(name, old.get(name), new.get(name)) for name in names}
    return {name: change for name, change in changes.items() if change is not None}


def _change(name: str, old: str | None, new: str | None) -> str | None:
    if old == new:
        return None
    if old is None:
        return f"{name} added"
    if new is None:
        return f"{name} removed"
    if name.startswith(_HOOK):
        return _hook_change(name, old, new)
    return f"{name} {old or 'none'} -> {new or 'none'}"


def _hook_change(name: str, old: str, new: str) -> str | None:
    """A hook's value is a digest, then its place: one that only moved did not change."""
    was, _, _ = old.partition(" ")
    digest, _, where = new.partition(" ")
    if was == digest:
        return None
    return f"{name} changed ({where})" if where else f"{name} changed"
