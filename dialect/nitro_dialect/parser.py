"""Text to module. The grammar is `nitro.lark`; this file and `op_reader` give its trees a meaning.

Names are resolved here (values, ops, dtypes), so that a wrong one is reported where it stands; what
only the whole module can tell (groups, functions, types of operands) is the verifier's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from nitro_dialect.errors import GROUP, SHAPE, VERSION
from nitro_dialect.folding import unfold
from nitro_dialect.ir import (
    Const,
    Device,
    Function,
    Group,
    Input,
    Leaf,
    Mark,
    Meta,
    Module,
    Parameter,
    Program,
    Region,
    Rule,
)
from nitro_dialect.op_reader import OpReader, Scope
from nitro_dialect.spelling import LANGUAGE
from nitro_dialect.syntax import tree_of
from nitro_dialect.tokens import (
    children,
    is_token,
    name_of,
    number_of,
    optional_name,
    present,
    tokens,
    word_or_number,
)
from nitro_dialect.types import TensorType

if TYPE_CHECKING:
    from nitro_dialect.syntax import Node
    from nitro_dialect.tokens import Child


def parse(text: str, *, source: str | None = None) -> Module:
    """The module that `text` is. DialectError at the first place that is wrong.

    `source` is a file's name for the message. The module is read, not verified: see `verify`.
    """
    return _ModuleReader(text, source).module(tree_of(text, source))


class _ModuleReader(OpReader):
    """One method per kind of line, named as its rule of the grammar."""

    def module(self, start: Node) -> Module:
        name, version, done, left, *items = children(start.children[0])
        if int(str(version)) != LANGUAGE:
            message = f"version {version}; this nitroc reads version {LANGUAGE}"
            self.fail(VERSION, message, version)
        module = Module(name_of(name), name_of(done), name_of(left))
        for item in items:
            getattr(self, cast("Node", item).data)(module, *children(item))
        return module

    def const(self, module: Module, name: Child, value: Child) -> None:
        module.consts.append(Const(name_of(name), name_of(value)))

    def device(self, module: Module, name: Child, type: Child, value: Child) -> None:
        initial = None if value is None else number_of(value)
        module.devices.append(Device(name_of(name), self.type(type), initial))

    def mark(
        self,
        module: Module,
        key: Child,
        kind: Child,
        name: Child,
        table: Child,
        reduce: Child,
        below: Child,
        above: Child,
        location: Child,
    ) -> None:
        found = self.once(module.marks, key, "mark")
        module.marks[found] = Mark(
            found,
            name_of(kind),
            name_of(name),
            self.metadata(table),
            Mark.reduce if reduce is None else name_of(reduce),
            None if below is None else number_of(below),
            None if above is None else number_of(above),
            name_of(tokens(location)[0]) if location is not None else Mark.source,
        )

    def metadata(self, table: Child) -> tuple[tuple[str, Meta], ...]:
        rows = present(table)
        for key, value in map(children, rows):
            if not is_token(value):
                self.fail(SHAPE, f"metadata {key} takes a text, a number or a bool", key)
        return tuple(cast("dict[str, Meta]", self.attributes(rows)).items())

    def group(self, module: Module, name: Child, role: Child, *rows: Child) -> None:
        key = self.once(module.groups, name, "group")
        try:
            leaves = unfold([self.leaf(row) for row in rows])
        except ValueError as error:
            self.fail(GROUP, f"group {key}: {error}", name)
        module.groups[key] = Group(key, str(role), tuple(leaves))

    def leaf(self, row: Child) -> Leaf:
        """A row as it is spelled: `unfold` reads its braces and quotes."""
        path, type, flags = children(row)
        kind = self.type(type)
        if not isinstance(kind, TensorType) or kind.weak:
            self.fail(GROUP, "a leaf has a dtype and a shape", path)
        return Leaf(str(path), kind.dtype, kind.shape, frozenset(map(name_of, tokens(flags))))

    def function(
        self,
        module: Module,
        name: Child,
        params: Child,
        results: Child,
        of: Child,
        wrt: Child,
        digest: Child,
    ) -> None:
        key = self.once(module.functions, name, "function")
        module.functions[key] = Function(
            key,
            self.signature(params),
            self.signature(results),
            name_of(digest),
            optional_name(of),
            optional_name(wrt),
        )

    def signature(self, node: Child) -> tuple[Parameter, ...]:
        pairs = map(children, present(node))
        return tuple(Parameter(name_of(name), self.type(type)) for name, type in pairs)

    def rule(
        self,
        module: Module,
        name: Child,
        elements: Child,
        factors: Child,
        slots: Child,
        structure: Child,
        body: Child,
    ) -> None:
        key = self.once(module.rules, name, "rule")
        starts = [(name_of(n), word_or_number(v)) for n, v in map(children, present(slots))]
        table = children(structure)
        module.rules[key] = Rule(
            key,
            tuple(map(name_of, tokens(elements))),
            tuple(map(name_of, tokens(factors))),
            tuple(starts),
            self.attributes(present(table[0]) if table else []),
            self.body(body, Scope()),
        )

    def program(self, module: Module, name: Child, *lines: Child) -> None:
        key = self.once(module.programs, name, "program")
        scope = Scope()
        program = module.programs[key] = Program(key, [], Region())
        for line in lines:
            if cast("Node", line).data == "input":
                program.inputs += self.inputs(line, scope)
            else:
                program.body.ops.append(self.op(line, scope))

    def inputs(self, line: Child, scope: Scope) -> list[Input]:
        role, *names, type, initial = children(line)
        start = None if initial is None else word_or_number(children(initial)[0])
        keyword = str(children(role)[0])
        kinds = [self.type(type)] * len(names)
        return [Input(keyword, value, start) for value in self.values(names, kinds, scope)]
