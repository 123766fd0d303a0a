"""Values of a rule's body are named after the variables of the function that made them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from nitro_dialect.builder import Names
from nitro_dialect.ir import Region, Value
from nitro_dialect.ops import RuleMark

UNNAMED = ("nitro_dialect", "nitroc.frontend", "nitroc.rules.marks")
"""Modules whose variables name nothing: what marks compute is named after the mark."""


@contextmanager
def source_names(function: Callable[..., Any]) -> Generator[dict[Value, str]]:
    """Names of local variables that hold values when a function called here returns.

    Those of `function` itself count most and stand alone; those of a function it calls follow that
    one's name (`bias_correction.y`), which names what it returns.
    """
    found: dict[Value, str] = {}
    code = function.__code__

    def on_return(frame: FrameType, event: str, returned: Any) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if event != "return" or module.startswith(UNNAMED):
            return
        outer = frame.f_code is code
        called = frame.f_code.co_name.lstrip("_")
        # Of two variables for one value the first counts: arguments come before other locals.
        for name, held in reversed(frame.f_locals.items()):
            if isinstance(held, Value):
                found[held] = name if outer else f"{called}.{name}"
        if isinstance(returned, Value) and not outer:
            found.setdefault(returned, called)

    previous = sys.getprofile()
    sys.setprofile(on_return)
    try:
        yield found
    finally:
        _set_profiler(previous)


def _set_profiler(profiler: Any) -> None:
    # cProfile's stands for itself here, and can't be called: it is told to go on
    if profiler is None or callable(profiler):
        sys.setprofile(profiler)
    else:
        profiler.enable()


def rename(region: Region, local: dict[Value, str]) -> None:
    """Names each result after its variable, or after the variable or mark it goes into."""
    known = {**dict(_marked(region)), **local}
    goals: dict[Value, str] = {}
    for op in reversed(region.ops):
        goal = next((known.get(r, goals.get(r)) for r in op.results), None) or "update"
        for read in op.inputs():
            goals[read] = goal
    names = Names([p.name for p in region.params])
    for op in region.ops:
        site = op.mnemonic.rpartition(".")[2]
        for result in op.results:
            own = known.get(result)
            hint = own or f"{goals.get(result, 'update')}.{site}"
            result.name = names.fresh(hint, "next" if own else site)


def _marked(region: Region) -> Iterator[tuple[Value, str]]:
    """What marks take, after the mark and what it is to it: `update/large.count`."""
    for op in region.ops:
        if isinstance(op, RuleMark) and isinstance(op.x, Value):
            yield op.x, f"{op.key.partition('{')[0]}.{op.channel}"
