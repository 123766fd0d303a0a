"""Definitions and uses: unique names, definition before use, regions that end in `yield`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nitro_dialect.errors import END, ORDER, TWICE
from nitro_dialect.ir import Region, Value
from nitro_dialect.rewrite import walk

Say = Callable[[int, str, object], None]
"""Reports a finding: number of its code, message, the part it is about."""


def check_names(inputs: Sequence[Value], body: Region, owner: object, say: Say) -> None:
    """Every value is defined once, and no two values have one name."""
    defined: set[Value] = set()
    names: set[str] = set()
    rows: list[tuple[object, Sequence[Value]]] = [(owner, inputs), (owner, body.params)]
    for op in walk(body):
        rows += [(op, op.results), (op, op.body.params if op.body is not None else ())]
    for part, values in rows:
        for value in values:
            if value in defined:
                say(TWICE, f"%{value.name} is defined twice", part)
            elif value.name in names:
                say(TWICE, f"two values are called %{value.name}", part)
            defined.add(value)
            names.add(value.name)


def check_region(
    body: Region, visible: set[Value], owner: object, say: Say, *, top: bool = False
) -> None:
    """Uses come after definitions that are visible; a region ends in its only `yield`.

    `visible` are values of the enclosing regions; `top` bodies end as programs do.
    """
    known = visible | set(body.params)
    for index, op in enumerate(body.ops):
        for value in op.inputs():
            if value not in known:
                say(ORDER, f"%{value.name} is not defined before this use", op)
        last = index == len(body.ops) - 1
        if not top and op.terminator and (op.mnemonic != "yield" or not last):
            where = "before the end of" if op.mnemonic == "yield" else "in"
            say(END, f"{op.mnemonic} {where} a region", op)
        if top and op.mnemonic == "yield":
            say(END, "yield outside a region", op)
        if op.body is not None:
            check_region(op.body, known, op, say)
        known |= set(op.results)
    if not top and (not body.ops or body.ops[-1].mnemonic != "yield"):
        say(END, "the region does not end in yield", owner)
