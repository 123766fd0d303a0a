"""`optimizer{rule=NAME,master=true}`: the rule's update of each parameter group, and its slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import Group, Module, Program, Rule
from nitro_dialect.ops import Apply, OptRule, TreeCast
from nitro_dialect.rewrite import clone
from nitro_dialect.types import F32, I64, NARROW, TreeType
from nitroc.errors import OptError
from nitroc.frontend.names import did_you_mean
from nitroc.passes.rule_marks import add_marks, before_decision, marks_read
from nitroc.passes.structure import (
    add_scalar,
    add_slot,
    add_target,
    before_assign,
    gradient,
    train_programs,
)


@dataclass(frozen=True)
class Optimizer:
    """Adds the rule's slots, `%t` (committed updates), its fields and the rate as scalars.

    A rule with marks is evaluated twice: before the step is decided for them (`opt.marks`), after
    it for the update.

    With `master`, a group that holds a leaf narrower than f32 is updated in an f32 copy, kept
    beside its slots; the parameter is the copy's rounding.
    """

    rule: str
    master: bool = True
    name: ClassVar[str] = "optimizer"

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        rule = module.rules.get(self.rule)
        if rule is None:
            raise OptError(
                14,
                f"no rule @{self.rule} in module @{module.name}",
                help=did_you_mean(self.rule, module.rules, "rules"),
            )
        for program in train_programs(module):
            _update(module, program, rule, self.master)
        return module


def _update(module: Module, program: Program, rule: Rule, master: bool) -> None:
    names = Names.of(program)
    g = gradient(program, Optimizer.name)
    param = next(i.value for i in program.inputs if i.role == "param")
    group = cast(TreeType, param.type).group
    f32 = TreeType(group, "f32")
    slots = [add_slot(program, names, f32, name, start) for name, start in rule.slots]
    copy = param
    if master and _narrow(module.groups[group]):
        copy = add_slot(program, names, f32, "master", "param")
    t = add_slot(program, names, I64, "t", 0)
    rate = add_scalar(program, names, "learning_rate")
    fields = {f: add_scalar(program, names, f) for f in rule.scalars if f != "t"}
    trees = {"g": g, "p": copy, **dict(zip((n for n, _ in rule.slots), slots, strict=True))}
    elements = [trees[e] for e in rule.elements]
    marked = bool(marks_read(module, program, rule))
    place = before_decision(program) if marked else before_assign(program)
    with building(program.body, names, place):
        count = emit_scalar("add", t, 1, hint="t.next")
        if "t" in rule.scalars:
            fields["t"] = emit_scalar("convert", count, hint="t.f", type=F32)
    scalars = [fields[s] for s in rule.scalars]
    if marked:
        add_marks(module, program, rule, names, elements, scalars)
    with building(program.body, names, before_assign(program)):
        update = emit(
            OptRule,
            *elements,
            types=[f32] * (1 + len(slots)),
            hints=["u", *(f"{s.name}.next" for s in slots)],
            symbol=rule.name,
            fields=scalars,
        )
        u, *states = update.results
        applied = emit(Apply, copy, u, rate, types=[copy.type], hints=[f"{copy.name}.next"]).r
        new = applied
        if copy is not param:
            new = emit(TreeCast, applied, types=[param.type], hints=[f"{param.name}.next"]).r
            add_target(program, copy, applied)
    for target, value in zip((param, t, *slots), (new, count, *states), strict=True):
        add_target(program, target, value)


def _narrow(group: Group) -> bool:
    return any(leaf.dtype in NARROW for leaf in group.leaves)
