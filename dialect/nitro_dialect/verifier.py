"""Whether a module obeys the language. Everything that is wrong is found, and told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nitro_dialect.diagnostics import located
from nitro_dialect.errors import (
    CONSTRAINT,
    END,
    GROUP,
    INPUT,
    LEVEL,
    SHAPE,
    TABLE,
    TWICE,
    UNKNOWN,
    Diagnostic,
    DialectError,
    suggestion,
)
from nitro_dialect.ir import (
    CHANNELS,
    MARK_KINDS,
    MARK_REDUCES,
    ROLES,
    STATEFUL,
    Function,
    Group,
    Input,
    Mark,
    Module,
    Parameter,
    Program,
    Rule,
    Value,
)
from nitro_dialect.marks import channel_of
from nitro_dialect.op import Context, Op
from nitro_dialect.ops import RULE_OPS
from nitro_dialect.ops.common import fits
from nitro_dialect.printer import Text
from nitro_dialect.rewrite import walk
from nitro_dialect.schema import misfits
from nitro_dialect.ssa import check_names, check_region
from nitro_dialect.types import (
    DTYPES,
    F32,
    SEED,
    TensorType,
    TreeType,
    Type,
    VecType,
    is_scalar,
    same,
)

GROUP_ROLES = ("param", "state", "outputs")
TAIL = ("assign", "report", "output")
"""What may end a program, in this order."""


def verify(module: Module) -> None:
    """DialectError with every finding, in text order, when `module` breaks a rule."""
    _raise(module, _Verifier(module).findings())


def verify_core(module: Module) -> None:
    """`verify`, and E-IR-009 for every named op: what must hold once `expand` has run."""
    verifier = _Verifier(module)
    found = verifier.findings()
    for program in module.programs.values():
        for op in walk(program.body):
            if op.level == "named":
                message = f"{op.mnemonic} is not one of the core ops"
                found.append(Finding(LEVEL, message, op))
    _raise(module, found)


@dataclass(frozen=True)
class Finding:
    """What is wrong with one part of a module: an op, an input, a group, a function, a rule."""

    number: int
    message: str
    part: object
    label: str | None = None


Say = Callable[[int, str, object], None]


def _raise(module: Module, findings: list[Finding]) -> None:
    if not findings:
        return
    printed = Text().module(module)
    found: list[Diagnostic] = []
    for finding in findings:
        line, column = printed.at(finding.part)
        found.append(
            located(
                finding.number, finding.message, printed.lines, line, column, label=finding.label
            )
        )
    raise DialectError(sorted(found, key=lambda d: (d.line or 0, d.column or 0)))


class _Verifier:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.found: list[Finding] = []
        self.context = Context(module, self.constraint)

    def findings(self) -> list[Finding]:
        module = self.module
        for group in module.groups.values():
            self.group(group)
        for device in module.devices:
            self.type(device.type, device)
        for key, mark in module.marks.items():
            self.mark(key, mark)
        for function in module.functions.values():
            self.function(function)
        for rule in module.rules.values():
            self.rule(rule)
        for program in module.programs.values():
            self.program(program)
        self.keys()
        return self.found

    def say(self, number: int, message: str, part: object) -> None:
        self.found.append(Finding(number, message, part))

    def constraint(self, op: Op, label: str, message: str) -> None:
        named = f"{op.mnemonic.replace('.', '_')}_{label.lower()}"
        self.found.append(Finding(CONSTRAINT, message, op, named))

    # ------------------------------------------------------------------ tables
    def keys(self) -> None:
        module = self.module
        tables = (module.groups, module.functions, module.rules, module.programs)
        for table in tables:
            for key, part in table.items():
                if key != part.name:
                    self.say(TABLE, f"{part.name} is kept under the name {key}", part)
        for row in (module.consts, module.devices):
            for name in _twice(item.name for item in row):
                part = next(item for item in row if item.name == name)
                self.say(TWICE, f"{name} is declared twice", part)

    def group(self, group: Group) -> None:
        if group.role not in GROUP_ROLES:
            near = suggestion(group.role, GROUP_ROLES)
            self.say(GROUP, f"group {group.name}: no role {group.role}{near}", group)
        for path in _twice(leaf.path for leaf in group.leaves):
            self.say(GROUP, f"group {group.name}: two leaves {path}", group)
        for leaf in group.leaves:
            if leaf.dtype not in DTYPES:
                near = suggestion(leaf.dtype, DTYPES)
                self.say(GROUP, f"leaf {leaf.path}: no dtype {leaf.dtype}{near}", group)
            if any(dim < 0 for dim in leaf.shape):
                self.say(GROUP, f"leaf {leaf.path}: a dimension below 0", group)

    def type(self, type: Type, part: object) -> None:
        """Group and dtype of a type are known."""
        group = type.group if isinstance(type, TreeType | VecType) else None
        if group is not None and group not in self.module.groups:
            near = suggestion(group, self.module.groups)
            self.say(UNKNOWN, f"no group {group} in this module{near}", part)
        dtype = type.dtype if isinstance(type, TensorType | TreeType) else None
        if dtype is not None and dtype not in DTYPES:
            self.say(UNKNOWN, f"no dtype {dtype}{suggestion(dtype, DTYPES)}", part)
        if isinstance(type, TensorType) and any(dim < 0 for dim in type.shape):
            self.say(SHAPE, f"{type} has a dimension below 0", part)

    def mark(self, key: str, mark: Mark) -> None:
        if key != mark.key:
            self.say(TABLE, f"mark {mark.key} is kept under the name {key}", mark)
        if mark.kind not in MARK_KINDS:
            near = suggestion(mark.kind, MARK_KINDS)
            self.say(UNKNOWN, f"mark {key}: no kind {mark.kind}{near}", mark)
        if mark.reduce not in MARK_REDUCES:
            near = suggestion(mark.reduce, MARK_REDUCES)
            self.say(UNKNOWN, f"mark {key}: no reduce {mark.reduce}{near}", mark)
        names = [name for name, _ in mark.meta]
        if names != sorted(set(names)):
            self.say(TABLE, f"mark {key}: metadata must be sorted by name, each once", mark)

    def channel(self, function: Function, result: Parameter) -> None:
        """A result that is a channel of a mark: both are known, and its type is the channel's."""
        found = channel_of(result.name)
        if found is None:
            return
        key, channel = found
        if key not in self.module.marks:
            near = suggestion(key, self.module.marks)
            self.say(UNKNOWN, f"@{function.name}: no mark {key} in this module{near}", function)
        if channel not in CHANNELS:
            near = suggestion(channel, CHANNELS)
            self.say(UNKNOWN, f"@{function.name}: a mark has no channel {channel}{near}", function)
        elif not is_scalar(result.type, CHANNELS[channel][0]):
            message = f"@{function.name}: {result.name} is {CHANNELS[channel][0]}"
            self.say(TABLE, f"{message}, found {result.type}", function)

    def function(self, function: Function) -> None:
        for parameter in (*function.params, *function.results):
            self.type(parameter.type, function)
        for result in function.results:
            self.channel(function, result)
        for row in (function.params, function.results):
            for name in _twice(p.name for p in row):
                self.say(TWICE, f"@{function.name} names {name} twice", function)
        known = self.module.functions
        if function.of is not None and function.of not in known:
            near = suggestion(function.of, known, "@")
            self.say(UNKNOWN, f"no function @{function.of} in this module{near}", function)
        names = [p.name for p in function.params]
        if function.wrt is not None and function.wrt not in names:
            near = suggestion(function.wrt, names)
            self.say(TABLE, f"@{function.name} has no parameter {function.wrt}{near}", function)

    def rule(self, rule: Rule) -> None:
        wanted = [*rule.elements, *rule.scalars]
        params = rule.body.params
        if len(params) != len(wanted) or not all(same(p.type, F32) for p in params):
            shown = ", ".join(wanted)
            self.say(TABLE, f"rule @{rule.name} takes one f32 each for {shown}", rule)
        for slot, _ in rule.slots:
            if slot not in rule.elements:
                near = suggestion(slot, rule.elements)
                self.say(TABLE, f"slot {slot} is no element of rule @{rule.name}{near}", rule)
        last = rule.body.ops[-1] if rule.body.ops else None
        values = last.operands.get("values", []) if last and last.mnemonic == "yield" else []
        if len(values) != 1 + len(rule.slots) or not all(fits(v, F32) for v in values):
            slots = ", ".join(["the update", *(slot for slot, _ in rule.slots)])
            self.say(TABLE, f"rule @{rule.name} yields one f32 each for {slots}", rule)
        for op in walk(rule.body):
            if op.mnemonic not in RULE_OPS:
                self.say(TABLE, f"{op.mnemonic} has no place in a rule, which is per element", op)
        check_names([], rule.body, rule, self.say)
        check_region(rule.body, set(), rule, self.say)
        self.ops(rule.body.ops)

    # ------------------------------------------------------------------ programs
    def program(self, program: Program) -> None:
        for item in program.inputs:
            self.input(item)
        values = [item.value for item in program.inputs]
        check_names(values, program.body, program, self.say)
        check_region(program.body, set(values), program, self.say, top=True)
        self.tail(program)
        self.ops(program.body.ops)
        self.assigned(program)

    def input(self, item: Input) -> None:
        name, kind = item.value.name, item.value.type
        self.type(kind, item)
        if item.role not in ROLES:
            self.say(INPUT, f"%{name}: no role {item.role}{suggestion(item.role, ROLES)}", item)
        if item.role == "scalars" and not is_scalar(kind):
            self.say(INPUT, f"%{name}: scalars hold scalars, found {kind}", item)
        if (item.role == "seed") != (kind == SEED):
            self.say(INPUT, f"%{name}: a seed input has the seed type, found {kind}", item)
        if item.initial is not None and item.role != "slot":
            self.say(INPUT, f"%{name}: only a slot has an initial value", item)

    def tail(self, program: Program) -> None:
        names = [op.mnemonic for op in program.body.ops]
        count = sum(name in TAIL for name in names)
        tail = names[len(names) - count :]
        places = [TAIL.index(name) if name in TAIL else -1 for name in tail]
        if count and (places != sorted(set(places)) or -1 in places):
            found = ", ".join(n for n in names if n in TAIL)
            message = f"a program ends in assign, report, output, in this order; found {found}"
            self.say(END, message, next(op for op in program.body.ops if op.mnemonic in TAIL))
        if not count:
            message = f"@{program.name} has no assign, report or output at its end"
            self.say(END, message, program.body.ops[-1] if program.body.ops else program)

    def assigned(self, program: Program) -> None:
        assigns = [op for op in walk(program.body) if op.mnemonic == "assign"]
        targets = [(op, v) for op in assigns for v in op.operands.get("targets", [])]
        stateful = {i.value for i in program.inputs if i.role in STATEFUL}
        seen: set[Value] = set()
        for op, target in targets:
            if not isinstance(target, Value) or target not in stateful:
                continue
            if target in seen:
                self.say(INPUT, f"%{target.name} is assigned twice", op)
            seen.add(target)

    def ops(self, ops: Iterable[Op]) -> None:
        for op in ops:
            for value in op.results:
                self.type(value.type, op)
            wrong = list(misfits(op))
            for message in wrong:
                self.say(SHAPE, message, op)
            # A check reads the parts that the schema promises.
            if not wrong:
                op.check(self.context)
            if op.body is not None:
                for value in op.body.params:
                    self.type(value.type, op)
                self.ops(op.body.ops)


def _twice(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    found: dict[str, None] = {}
    for name in names:
        if name in seen:
            found[name] = None
        seen.add(name)
    return list(found)
