"""The binding report on parameter groups: what becomes of every leaf of params and state."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from nitro_dialect.folding import fold
from nitro_dialect.ir import Leaf
from nitro_dialect.types import NARROW
from nitroc.nn import EquinoxModel, LinenModel, NnxModel

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup

LEVELS = {"default": "level 0", "attribute": "level 1"}
"""The level of a rule, by what decided it."""

NO_DECAY = "none, there is no decay stage"


def report_groups(setup: Setup) -> None:
    """Adds a section `groups`: counts, rule, decayed, exempt and frozen leaves, slots, masters.

    The model of a library is a row too: it says how its module is told whether it trains.
    """
    optimizer, group = setup.optimizer, setup.groups.params

    def add(part: str, value: str, source: str = "") -> None:
        setup.report.add("groups", f"{group.name}{part}", value, source)

    decayed = [leaf for leaf in group.leaves if optimizer.decays and "decay" in leaf.flags]
    exempt = [leaf for leaf in group.leaves if not optimizer.decays or "decay" not in leaf.flags]
    add("", f"{_count(group.leaves)}, {sum(prod(leaf.shape) for leaf in group.leaves)} values")
    add(".rule", optimizer.rule.name, LEVELS[optimizer.sources["optimizer"]])
    add(".learning_rate", f"{optimizer.learning_rate!r}, 1.0 of the base")
    add(".decayed", listed(decayed) if optimizer.decays else NO_DECAY)
    add(".exempt", listed(exempt))
    add(".frozen", "none")
    if optimizer.decays:
        add(".anchor", "zero")
    add(".slots", ", ".join(optimizer.rule.slots) or "none", "f32")
    add(".masters", _masters(setup, group.leaves))
    setup.report.add("groups", setup.groups.state.name, _count(setup.groups.state.leaves))
    if isinstance(setup.model, LinenModel | NnxModel | EquinoxModel):
        setup.report.add("groups", "model", repr(setup.model))
    if not setup.groups.has_trees:
        setup.report.add("groups", "model", "as built: build_model is called for its trees only")
    for note in setup.groups.notes:
        setup.report.add("groups", "note", note)


def _masters(setup: Setup, leaves: Sequence[Leaf]) -> str:
    narrow = [leaf for leaf in leaves if leaf.dtype in NARROW]
    if not narrow:
        return "none, no leaf is narrower than f32"
    if setup.options["master_weights"].value:
        return f"f32 beside {listed(narrow)}"
    return f"declined, updates are rounded into {listed(narrow)}"


def listed(leaves: Sequence[Leaf]) -> str:
    """How many, and their paths; runs of equal sub-trees fold."""
    names = ", ".join(leaf.path for leaf in fold(leaves))
    return f"{_count(leaves)}: {names}" if leaves else "none"


def _count(leaves: Sequence[Leaf]) -> str:
    """`1 leaf`, `4 leaves`."""
    return f"{len(leaves)} {'leaf' if len(leaves) == 1 else 'leaves'}"
