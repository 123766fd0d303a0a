"""Module to text: one canonical form, one op per line, values named by where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from nitro_dialect.folding import fold
from nitro_dialect.ir import (
    Attr,
    Function,
    Group,
    Input,
    Literal,
    Mark,
    Module,
    Parameter,
    Program,
    Region,
    Rule,
    Value,
)
from nitro_dialect.op import Op, operand, variadic
from nitro_dialect.spelling import (
    LANGUAGE,
    attr,
    const_value,
    literal,
    name,
    number,
    quoted,
    symbol_name,
    type_text,
    value_name,
    word,
)


def print_module(module: Module, *, locations: bool = False) -> str:
    """The canonical text of `module`; with `locations`, each op's source line at its end."""
    return Text(locations).module(module).text()


def print_program(program: Program, *, locations: bool = False) -> str:
    """One program's lines, as they stand in its module but for the indentation."""
    printed = Text(locations)
    printed.program(program)
    return printed.text()


class Text:
    """Lines of a module, and for each of its parts the line it begins in (`at`, from 1)."""

    def __init__(self, locations: bool = False) -> None:
        self.lines: list[str] = []
        self.locations = locations
        self._depth = 0
        self._line_of: dict[int, int] = {}
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def at(self, part: object) -> tuple[int, int]:
        """Line and column of a module, group, function, rule, program, input or op."""
        line = self._line_of.get(id(part), 1)
        text = self.lines[line - 1]
        return line, len(text) - len(text.lstrip()) + 1

    def name_of(self, value: Value) -> str:
        """The name `value` has in this text."""
        return self._names.get(value, value.name)

    def _line(self, text: str, *parts: object) -> None:
        self.lines.append("  " * self._depth + text)
        for part in parts:
            self._line_of[id(part)] = len(self.lines)

    # ------------------------------------------------------------------ module
    def module(self, module: Module) -> Text:
        pipeline = f"pipeline {quoted(module.done)} left {quoted(module.left)}"
        self._line(f"module {symbol_name(module.name)} version {LANGUAGE} {pipeline} {{", module)
        self._depth += 1
        for const in module.consts:
            self._line(f"const {name(const.name)} = {const_value(const.value)}", const)
        for device in module.devices:
            value = "" if device.value is None else f" = {number(device.value)}"
            self._line(f"device {name(device.name)} : {type_text(device.type)}{value}", device)
        for mark in module.marks.values():
            self.mark(mark)
        for group in module.groups.values():
            self.group(group)
        for function in module.functions.values():
            self._line(_function(function), function)
        for rule in module.rules.values():
            self.rule(rule)
        for program in module.programs.values():
            self.program(program)
        self._depth -= 1
        self._line("}")
        return self

    def mark(self, mark: Mark) -> None:
        parts = [f"mark {quoted(mark.key)} : {name(mark.kind)} {quoted(mark.name)}"]
        parts += _table(dict(mark.meta))
        parts += [f"reduce {name(mark.reduce)}"] if mark.reduce != Mark.reduce else []
        bounds = {"below": mark.below, "above": mark.above}
        parts += [f"{key} {number(bound)}" for key, bound in bounds.items() if bound is not None]
        parts += [f"loc({quoted(mark.source)})"] if self.locations and mark.source else []
        self._line(" ".join(parts), mark)

    def group(self, group: Group) -> None:
        self._line(f"group {name(group.name)} : {name(group.role)} {{", group)
        self._depth += 1
        for leaf in fold(group.leaves):
            dims = f"[{','.join(map(str, leaf.shape))}]" if leaf.shape else ""
            flags = f" {{{', '.join(map(name, sorted(leaf.flags)))}}}" if leaf.flags else ""
            self._line(f"{leaf.path} : {name(leaf.dtype)}{dims}{flags}")
        self._depth -= 1
        self._line("}")

    def rule(self, rule: Rule) -> None:
        self._names, self._taken = {}, set()
        parts = [f"rule {symbol_name(rule.name)}"]
        slots = [f"{name(slot)} = {_initial(value)}" for slot, value in rule.slots]
        tables = {
            "elements": list(map(name, rule.elements)),
            "scalars": list(map(name, rule.scalars)),
            "slots": slots,
        }
        parts += [f"{key}({', '.join(row)})" for key, row in tables.items() if row]
        parts += [f"structure {table}" for table in _table(rule.structure)]
        self.region(" ".join(parts), rule.body, "", rule)

    # ------------------------------------------------------------------ program
    def program(self, program: Program) -> None:
        self._names, self._taken = {}, set()
        self._line(f"program {symbol_name(program.name)} {{", program)
        self._depth += 1
        for inputs in _shared_lines(program.inputs):
            first = inputs[0]
            names = ", ".join(self.define(item.value, item.role) for item in inputs)
            initial = "" if first.initial is None else f" = {_initial(first.initial)}"
            kind = type_text(first.value.type)
            self._line(f"{name(first.role)} {names} : {kind}{initial}", *inputs)
        for op in program.body.ops:
            self.op(op)
        self._depth -= 1
        self._line("}")

    def define(self, value: Value, site: str) -> str:
        """Names a value where it is defined; one that is taken gets the site as suffix."""
        found = value.name
        while found in self._taken:
            found = f"{found}.{site}"
        self._taken.add(found)
        self._names[value] = found
        return value_name(found)

    def use(self, operand: Value | Literal) -> str:
        return literal(operand) if isinstance(operand, Literal) else self._used(operand)

    def _used(self, value: Value) -> str:
        # Only a wrong module has a value without definition; its message needs a name all the same.
        return value_name(self._names[value]) if value in self._names else self.define(value, "use")

    def op(self, op: Op) -> None:
        site = op.mnemonic.rsplit(".", 1)[-1]
        parts = [op.mnemonic]
        parts += [symbol_name(op.symbol)] if op.symbol is not None else []
        parts += [", ".join(map(self.use, _positional(op)))] if _positional(op) else []
        parts += _table(op.attrs)
        entries = [f"{name(key)} = {self.use(value)}" for key, value in op.entries.items()]
        parts += [f"{{{', '.join(entries)}}}"] if entries else []
        parts += [f"{key}({', '.join(map(self.use, row))})" for key, row in _keywords(op)]
        text, types = " ".join(parts), ", ".join(type_text(r.type) for r in op.results)
        tail = f" : {types}" if types else ""
        tail += f" loc({quoted(op.location)})" if self.locations and op.location else ""
        if op.body is None:
            self._line(f"{self.results(op, site)}{text}{tail}", op)
            return
        # Results are named before the region is printed: their line comes first.
        self.region(f"{self.results(op, site)}{text}", op.body, tail, op)

    def results(self, op: Op, site: str) -> str:
        names = [self.define(result, site) for result in op.results]
        return f"{', '.join(names)} = " if names else ""

    def region(self, head: str, region: Region, tail: str, owner: object) -> None:
        params = [f"{self.define(p, 'in')} : {type_text(p.type)}" for p in region.params]
        captured = f" ({', '.join(params)})" if params else ""
        self._line(f"{head}{captured} {{", owner)
        self._depth += 1
        for op in region.ops:
            self.op(op)
        self._depth -= 1
        self._line(f"}}{tail}")


def _function(function: Function) -> str:
    parts = [
        f"func {symbol_name(function.name)} ({_signature(function.params)})",
        f"-> ({_signature(function.results)})",
    ]
    parts += [f"of {symbol_name(function.of)}"] if function.of is not None else []
    parts += [f"wrt {name(function.wrt)}"] if function.wrt is not None else []
    return " ".join([*parts, f"from {quoted(function.digest)}"])


def _signature(row: Iterable[Parameter]) -> str:
    return ", ".join(f"{name(p.name)} : {type_text(p.type)}" for p in row)


def _initial(value: str | bool | int | float) -> str:
    return word(value) if isinstance(value, str) else number(value)


def _table(attrs: Mapping[str, Attr]) -> list[str]:
    rows = [f"{name(key)} = {attr(attrs[key])}" for key in sorted(attrs)]
    return [f"{{{', '.join(rows)}}}"] if rows else []


def _positional(op: Op) -> list[Value | Literal]:
    names = [d.name for d in [*op.schema(operand), *op.schema(variadic)]]
    return [value for key in names for value in op.operands.get(key, [])]


def _keywords(op: Op) -> Iterator[tuple[str, list[Value | Literal]]]:
    """Keyword groups in the order the op declares them, then any it does not."""
    placed = {d.name for d in [*op.schema(operand), *op.schema(variadic)]}
    known = [d.name for d in op.schema() if d.name not in placed]
    order = [*known, *(key for key in op.operands if key not in known)]
    for key in order:
        if key not in placed and op.operands.get(key):
            yield key, op.operands[key]


def _shared_lines(inputs: Sequence[Input]) -> Iterator[list[Input]]:
    """Consecutive `scalars` of one type stand in one line, every other input in its own."""
    for _, run in groupby(enumerate(inputs), lambda pair: _line_key(*pair)):
        yield [item for _, item in run]


def _line_key(index: int, item: Input) -> tuple[str, str]:
    own_line = item.role != "scalars" or item.initial is not None
    return (str(index), "") if own_line else ("scalars", type_text(item.value.type))
