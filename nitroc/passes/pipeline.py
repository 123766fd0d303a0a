"""The pipeline: passes in order, their text, verification after each.

`name{option=value,...}` joined by commas; `parse` and `spell` are inverses, so a module's header
says what has run (`done`) and what has not (`left`), and any dump can be resumed from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol

from nitro_dialect.compare import difference
from nitro_dialect.errors import DialectError
from nitro_dialect.ir import Module
from nitro_dialect.parser import parse as parse_module
from nitro_dialect.printer import print_module
from nitro_dialect.verifier import verify, verify_core
from nitroc.errors import BuildError
from nitroc.frontend.names import did_you_mean
from nitroc.passes.accumulate import Accumulate
from nitroc.passes.clip import Clip
from nitroc.passes.commit import CommitStep
from nitroc.passes.decay import WeightDecay
from nitroc.passes.diagnose import Diagnose
from nitroc.passes.differentiate import Differentiate
from nitroc.passes.expand import Expand
from nitroc.passes.guard import Guard
from nitroc.passes.optimizer import Optimizer


class Pass(Protocol):
    """A frozen dataclass: its fields are its options, calling it makes a module from a module."""

    name: ClassVar[str]

    def __call__(self, module: Module) -> Module: ...


PASSES: dict[str, type[Any]] = {
    cls.name: cls
    for cls in (
        Diagnose,
        Differentiate,
        Accumulate,
        Clip,
        Guard,
        Optimizer,
        WeightDecay,
        CommitStep,
        Expand,
    )
}
"""Every pass by the name it has in a pipeline's text, in the order they run."""

_ITEM = re.compile(r"\s*([^\s{},=]+)\s*(?:\{([^{}]*)\})?\s*(,|$)")
_OPTION = re.compile(r"\s*([^\s{},=]+)\s*=\s*([^\s{},=]+)\s*")

OnStage = Callable[[int, str, Module], None]


def parse(text: str) -> list[Pass]:
    """The passes `text` names. E-BUILD-001 to E-BUILD-003 for what it can't mean."""
    passes: list[Pass] = []
    place = 0
    while place < len(text.rstrip()):
        found = _ITEM.match(text, place)
        if found is None:
            raise _malformed(text, place)
        passes.append(_make(found[1], found[2] or ""))
        place = found.end()
        if found[3] and not text[place:].strip():
            raise _malformed(text, place)
    return passes


def _malformed(text: str, place: int) -> BuildError:
    return BuildError(
        3,
        f"a pipeline ends in mid-air at character {place + 1} of {text!r}",
        help="write name{option=value,...} joined by commas, such as clip{max=1.0},guard",
    )


def _make(name: str, options: str) -> Pass:
    cls = PASSES.get(name)
    if cls is None:
        raise BuildError(1, f"no pass {name}", help=did_you_mean(name, PASSES, "passes"))
    known = {f.name: f for f in fields(cls)}
    given: dict[str, bool | int | float | str] = {}
    for item in options.split(",") if options.strip() else []:
        found = _OPTION.fullmatch(item)
        if found is None:
            raise BuildError(
                3,
                f"{name} has {item!r}, expected option=value",
                help=f"write {name}{{option=value}}",
            )
        if found[1] not in known:
            raise BuildError(
                2,
                f"pass {name} has no option {found[1]}",
                help=did_you_mean(found[1], known, f"options of {name}"),
            )
        given[found[1]] = _value(name, known[found[1]], found[2])
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in given]
    if missing:
        raise BuildError(
            2, f"pass {name} needs {missing[0]}", help=f"write {name}{{{missing[0]}=...}}"
        )
    return cls(**given)


_READ: dict[str, Callable[[str], bool | int | float | str]] = {
    "bool": {"true": True, "false": False}.__getitem__,
    "int": int,
    "float": float,
    "str": str,
}
"""How an option's text is read, by the annotation of its field."""


def _value(name: str, field: Field[Any], text: str) -> bool | int | float | str:
    kind = str(field.type)
    try:
        return _READ[kind](text)
    except (KeyError, ValueError):
        raise BuildError(
            2,
            f"option {field.name} of {name} is {text!r}, expected {kind}",
            help=f"write {name}{{{field.name}=...}} with {kind}",
        ) from None


def spell(passes: Pass | Sequence[Pass]) -> str:
    """The text that `parse` reads back: every option, in the order of the pass's fields."""
    if isinstance(passes, Sequence):
        return ",".join(map(spell, passes))
    options = [f"{f.name}={_text(getattr(passes, f.name))}" for f in fields(passes)]  # type: ignore[arg-type]
    return f"{passes.name}{{{','.join(options)}}}" if options else passes.name


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def run(
    module: Module,
    passes: str | Sequence[Pass] | None = None,
    *,
    roundtrip: bool = False,
    on_stage: OnStage | None = None,
) -> Module:
    """The module after `passes`; without any, after what its header says is left.

    After each pass the module is verified, and `on_stage(number, name, module)` is called: 0 and
    `import` for a module no pass has run on, then the count and name of the last pass done. With
    `roundtrip`, each stage is also printed, read back and compared. E-BUILD-006 and E-BUILD-007
    name the pass that left a wrong module or one whose text does not read back.
    """
    if passes is None:
        passes = module.left
    todo = parse(passes) if isinstance(passes, str) else list(passes)
    done = parse(module.done)
    _check_order([*done, *todo])
    module = replace(module, left=spell(todo))
    while True:
        stage = done[-1].name if done else "import"
        _check(module, stage, expanded=any(isinstance(p, Expand) for p in done))
        if roundtrip:
            _round_trip(module, stage)
        if on_stage is not None:
            on_stage(len(done), stage, module)
        if not todo:
            return module
        done.append(todo.pop(0))
        module = replace(done[-1](module), done=spell(done), left=spell(todo))


def _check_order(passes: Sequence[Pass]) -> None:
    names = [p.name for p in passes]
    order = list(PASSES)
    for earlier, later in pairwise(names):
        if order.index(earlier) >= order.index(later):
            raise BuildError(
                4,
                f"{later} comes after {earlier}",
                help=f"passes run once each, in the order {', '.join(order)}",
            )


def _check(module: Module, stage: str, *, expanded: bool) -> None:
    try:
        (verify_core if expanded else verify)(module)
    except DialectError as error:
        raise BuildError(
            6,
            f"the module does not verify after {stage}:\n{error}",
            help="this is a defect of the compiler: please report it with the message",
        ) from error


def _round_trip(module: Module, stage: str) -> None:
    text = print_module(module)
    found = difference(module, parse_module(text))
    if found is not None:
        raise BuildError(
            7,
            f"the text after {stage} reads back to another module: {found}",
            help="this is a defect of the compiler: please report it with the message",
        )
