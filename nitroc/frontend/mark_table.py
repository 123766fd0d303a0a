"""The marks of one experiment: each call site with its metadata, by the key that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nitro_dialect.ir import Mark
from nitro_runtime.marks import series_name
from nitroc.errors import ContractError


class MarkTable:
    """Marks in the order in which traces met them first; the objective is traced first."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}
        self._keys: dict[object, str] = {}

    def key(self, mark: Mark) -> str:
        """The key of `mark`, whose own is empty; a mark not met before is added.

        E-CONTRACT-024 for a name that already is another kind of series.
        """
        identity = _identity(mark)
        if identity not in self._keys:
            refuse_clash(mark, self.marks.values())
            key = free_key(mark, self.marks)
            self._keys[identity] = key
            self.marks[key] = replace(mark, key=key)
        return self._keys[identity]

    def __contains__(self, mark: Mark) -> bool:
        return _identity(mark) in self._keys


def _identity(mark: Mark) -> object:
    """`layer=1`, `layer=True` and `layer=1.0` are equal, and three series."""
    return mark, tuple(repr(value) for _, value in mark.meta)


def refuse_clash(mark: Mark, others: Iterable[Mark]) -> None:
    """E-CONTRACT-024, with both lines, where `mark` is another series under the name of one."""
    for other in others:
        if other.name == mark.name and _clash(mark, other):
            raise ContractError(
                24,
                f"{_described(mark)} is also {_described(other)}, which is at {_line(other)}",
                where=_line(mark),
                help="rename one of them",
            )


def free_key(mark: Mark, taken: Mapping[str, Mark]) -> str:
    """The series of `mark`, with `#2`, `#3` for further sites of it."""
    text = series_name(mark.name, dict(mark.meta))
    key, count = text, 1
    while key in taken:
        count += 1
        key = f"{text}#{count}"
    return key


def _clash(mark: Mark, other: Mark) -> bool:
    kinds = {mark.kind, other.kind}
    if kinds == {"metric", "diagnostic"}:
        return True
    return kinds == {"diagnostic"} and mark.reduce != other.reduce


def _described(mark: Mark) -> str:
    reduce = f" with reduce={mark.reduce!r}" if mark.kind == "diagnostic" else ""
    return f"the {mark.kind} {mark.name}{reduce}"


def _line(mark: Mark) -> str:
    return mark.source.rpartition(":")[0]
