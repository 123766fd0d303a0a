"""The marks of a module as a manifest lists them: where each runs, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from nitro_dialect.ir import Function, Mark, Meta, Module
from nitro_dialect.marks import channel_of
from nitro_runtime.canonical import Json
from nitro_runtime.manifest import GuardEntry, GuardsEntry, ReportWord, word_of_mark
from nitroc.emit.program import EmittedProgram

NEVER = "never run: its hook is not part of training"

CALLS = {"finite": "assert_finite"}
"""What the user calls a kind of mark, where that is another word."""


def guards_entry(module: Module, emitted: Mapping[str, EmittedProgram]) -> GuardsEntry:
    """Every mark of the module, with the programs whose reports have a word of it."""
    reported = {name: _marks_of(program.report) for name, program in emitted.items()}
    return GuardsEntry(
        {
            key: _entry(mark, tuple(n for n, keys in reported.items() if key in keys), index)
            for index, (key, mark) in enumerate(module.marks.items())
        }
    )


def _marks_of(words: tuple[ReportWord, ...]) -> set[str]:
    return {mark[0] for word in words if (mark := word_of_mark(word.name))}


def _entry(mark: Mark, programs: tuple[str, ...], index: int) -> GuardEntry:
    return GuardEntry(
        mark.kind,
        mark.name,
        programs,
        mark.source,
        {key: _spelled(value) for key, value in mark.meta},
        mark.reduce,
        _spelled(mark.below),
        _spelled(mark.above),
        index,
    )


def _spelled(value: Meta | None) -> Json:
    """The value, or its name where JSON has no such number."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def holds_marks(function: Function) -> bool:
    """Whether the function has results for marks."""
    return any(channel_of(result.name) is not None for result in function.results)


def of_group(mark: Mark, group: str = "default") -> Mark:
    """A rule's mark as it counts in the parameters of `group`."""
    return replace(mark, meta=tuple(sorted((*mark.meta, ("group", group)))))


def samples(module: Module) -> bool:
    """Whether training holds a diagnostic: in a hook, or in a rule."""
    in_rule = any(m.kind == "diagnostic" and _in_rule(m) for m in module.marks.values())
    return "objective.sampled" in module.functions or ("objective" in module.functions and in_rule)


def counts(module: Module) -> bool:
    """Whether something that the train step runs may count: a guard or a bound."""
    trained = [f for n, f in module.functions.items() if n.partition(".")[0] == "objective"]
    channels = [channel_of(result.name) for f in trained for result in f.results]
    in_hooks = any(found is not None and found[1] == "count" for found in channels)
    return in_hooks or any(_in_rule(mark) and _counts(mark) for mark in module.marks.values())


def _in_rule(mark: Mark) -> bool:
    """`group` is reserved: only marks of rules have it."""
    return any(key == "group" for key, _ in mark.meta)


def _counts(mark: Mark) -> bool:
    bounded = mark.below is not None or mark.above is not None
    return bounded or mark.kind in ("guard", "finite")


def of_forward(guards: GuardsEntry) -> list[str]:
    """The marks that are in forward, where a filled row would count."""
    placed = guards.placed.items()
    return [k for k, e in placed if any(name.startswith("forward.") for name in e.programs)]


def lines(guards: GuardsEntry) -> Iterator[tuple[str, str, str]]:
    """Per mark: its key, what it is and where it runs, and the line that placed it.

    Then, without a line, what the marks of forward change.
    """
    for key, entry in guards.placed.items():
        where = f"in {', '.join(entry.programs)}" if entry.programs else NEVER
        yield key, ", ".join([*_traits(entry), where]), entry.source
    unfilled = of_forward(guards)
    if unfilled:
        marks = ", ".join(unfilled)
        yield "short batches", f"not filled in a pass: a filled row would count in {marks}", ""


def _traits(entry: GuardEntry) -> Iterator[str]:
    yield CALLS.get(entry.kind, entry.kind)
    if entry.kind == "diagnostic":
        yield f"reduce {entry.reduce}"
    if entry.below is not None:
        yield f"below {entry.below}"
    if entry.above is not None:
        yield f"above {entry.above}"
