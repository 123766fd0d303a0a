"""Values of a rule's body are named after the variables of the function that made them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from nitro_dialect.builder import Names
from nitro_dialect.ir import Region, Value


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
        if event != "return" or module.startswith("nitro_dialect"):
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
    """Names each result after its variable, or after the variable it goes into and its op."""
    goals: dict[Value, str] = {}
    for op in reversed(region.ops):
        goal = next((local.get(r, goals.get(r)) for r in op.results), None) or "update"
        for read in op.inputs():
            goals[read] = goal
    names = Names([p.name for p in region.params])
    for op in region.ops:
        for result in op.results:
            own = local.get(result)
            hint = own or f"{goals.get(result, 'update')}.{op.mnemonic}"
            result.name = names.fresh(hint, "next" if own else op.mnemonic)
