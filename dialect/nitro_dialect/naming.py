"""Names of values: by where they come from, unique in a program, never numbered.

A value that plain arithmetic makes is called after the Python variable that holds it, once one
does; until then after the operand it comes from (`mu.div`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from nitro_dialect.ir import Program, Region, Value


class Names:
    """Names taken in one program; `fresh` makes another by suffix."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self.taken = set(taken)
        self._derived: dict[Value, str] = {}

    def fresh(self, hint: str, site: str) -> str:
        """`hint`, or with `site` behind it as often as it takes."""
        name = hint
        while name in self.taken:
            name = f"{name}.{site}"
        self.taken.add(name)
        return name

    @classmethod
    def of(cls, program: Program) -> Names:
        names = cls([i.value.name for i in program.inputs])
        names.taken.update(_names(program.body))
        return names

    def origin(self, site: str, operands: Sequence[Value]) -> str:
        """A name for the result of `site`: one operand's root, a second's too if that is taken.

        Factors stand before what they scale (`b1 * mu`), so a product is named by its right one.
        """
        order = [*reversed(operands)] if site == "mul" else [*operands]
        roots = list(dict.fromkeys(v.name.split(".")[0] for v in order))
        first = f"{roots[0]}.{site}"
        second = [f"{first}.{root}" for root in roots[1:]]
        return next((n for n in (first, *second) if n not in self.taken), first)

    def derived(self, value: Value, site: str) -> None:
        """`value` has a derived name: a variable's replaces it."""
        self._derived[value] = site

    def adopt(self) -> None:
        """Gives derived values the names of the variables that the code calling the dialect has."""
        for variable, value in _callers_variables().items():
            if not isinstance(value, Value) or value not in self._derived:
                continue
            site = self._derived.pop(value)
            self.taken.discard(value.name)
            hint = f"{variable}.next" if variable in self.taken else variable
            value.name = self.fresh(hint, site)


def _names(region: Region) -> Iterator[str]:
    yield from (p.name for p in region.params)
    for op in region.ops:
        yield from (r.name for r in op.results)
        if op.body is not None:
            yield from _names(op.body)


def _callers_variables() -> dict[str, object]:
    """Local variables of the innermost function outside this package."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("nitro_dialect."):
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}
