"""Text to module. The grammar is `nitro.lark`; this file gives its trees their meaning.

Names are resolved here (values, ops, dtypes), so that a wrong one is reported where it stands; what
only the whole module can tell (types, groups, functions) is the verifier's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from nitro_dialect.diagnostics import located
from nitro_dialect.errors import (
    GROUP,
    ORDER,
    SHAPE,
    SYNTAX,
    TWICE,
    UNKNOWN,
    VERSION,
    DialectError,
    suggestion,
)
from nitro_dialect.folding import unfold
from nitro_dialect.ir import (
    ROLES,
    Attr,
    Const,
    Device,
    Function,
    Group,
    Input,
    Leaf,
    Literal,
    Module,
    Parameter,
    Program,
    Region,
    Rule,
    Value,
)
from nitro_dialect.op import OPS, Op, attr, entries, operand, operands, variadic
from nitro_dialect.spelling import LANGUAGE
from nitro_dialect.syntax import tree_of
from nitro_dialect.types import DTYPES, SEED, TensorType, TreeType, Type, VecType

if TYPE_CHECKING:
    from lark import Token

    from nitro_dialect.syntax import Node

_NUMBERS = {
    "TRUE": True,
    "FALSE": False,
    "NAN": float("nan"),
    "INF": float("inf"),
    "MINUS_INF": float("-inf"),
}


def parse(text: str, *, source: str | None = None) -> Module:
    """The module that `text` is. DialectError at the first place that is wrong.

    `source` is a file's name for the message. The module is read, not verified: see `verify`.
    """
    return _Reader(text, source).module(tree_of(text, source))


class _Scope:
    """Values that may be used here, and the line of every name given in this program so far."""

    def __init__(self) -> None:
        self.visible: dict[str, Value] = {}
        self.given: dict[str, int] = {}


class _Reader:
    def __init__(self, text: str, source: str | None) -> None:
        self.lines = text.split("\n")
        self.source = source

    def fail(self, number: int, message: str, token: Token, help: str | None = None) -> NoReturn:
        line, column = token.line or 1, token.column or 1
        found = located(number, message, self.lines, line, column, help=help)
        raise DialectError([found], source=self.source)

    # ------------------------------------------------------------------ module
    def module(self, start: Node) -> Module:
        name, version, done, left, *items = _node(start.children[0]).children
        if int(_token(version)) != LANGUAGE:
            message = f"version {version}; this nitroc reads version {LANGUAGE}"
            self.fail(VERSION, message, _token(version))
        module = Module(_text(name), _text(done), _text(left))
        for item in map(_node, items):
            getattr(self, item.data)(module, *item.children)
        return module

    def const(self, module: Module, name: Token, value: Token) -> None:
        module.consts.append(Const(_text(name), _text(value)))

    def device(self, module: Module, name: Token, type: Node, value: Token | None) -> None:
        initial = None if value is None else _number(value)
        module.devices.append(Device(_text(name), self.type(type), initial))

    def group(self, module: Module, name: Token, role: Token, *rows: Node | None) -> None:
        self.add(module.groups, name, "group")
        leaves: list[Leaf] = []
        for row in rows:
            leaves += [] if row is None else [self.leaf(row)]
        try:
            leaves = unfold(leaves)
        except ValueError as error:
            self.fail(GROUP, f"group {_text(name)}: {error}", name)
        module.groups[_text(name)] = Group(_text(name), str(role), tuple(leaves))

    def leaf(self, row: Node) -> Leaf:
        path, type, flags = row.children
        kind = self.type(_node(type))
        if not isinstance(kind, TensorType) or kind.weak:
            self.fail(GROUP, "a leaf has a dtype and a shape", _token(path))
        names = [] if flags is None else _node(flags).children
        found = frozenset(_text(flag) for flag in names if flag is not None)
        return Leaf(str(path), kind.dtype, kind.shape, found)

    def function(
        self,
        module: Module,
        name: Token,
        params: Node,
        results: Node,
        of: Token | None,
        wrt: Token | None,
        digest: Token,
    ) -> None:
        self.add(module.functions, name, "function")
        module.functions[_text(name)] = Function(
            _text(name),
            self.signature(params),
            self.signature(results),
            _text(digest),
            None if of is None else _text(of),
            None if wrt is None else _text(wrt),
        )

    def signature(self, node: Node) -> tuple[Parameter, ...]:
        pairs = [_node(child).children for child in node.children if child is not None]
        return tuple(Parameter(_text(name), self.type(_node(type))) for name, type in pairs)

    def rule(
        self,
        module: Module,
        name: Token,
        elements: Node | None,
        factors: Node | None,
        slots: Node | None,
        structure: Node | None,
        body: Node,
    ) -> None:
        self.add(module.rules, name, "rule")
        pairs = [_node(slot).children for slot in (slots.children if slots else ())]
        baked = _node(structure.children[0]).children if structure else ()
        module.rules[_text(name)] = Rule(
            _text(name),
            tuple(map(_text, elements.children)) if elements else (),
            tuple(map(_text, factors.children)) if factors else (),
            tuple((_text(slot), self.initial(_token(value))) for slot, value in pairs),  # type: ignore[misc]
            self.attributes([_node(entry) for entry in baked if entry is not None]),
            self.body(body, _Scope()),
        )

    def program(self, module: Module, name: Token, *lines: Node | None) -> None:
        self.add(module.programs, name, "program")
        scope = _Scope()
        program = Program(_text(name), [], Region())
        module.programs[program.name] = program
        for line in lines:
            if line is not None and line.data == "input":
                program.inputs += self.inputs(line, scope)
            elif line is not None:
                program.body.ops.append(self.op(line, scope))

    def inputs(self, line: Node, scope: _Scope) -> list[Input]:
        role, *names, type, initial = line.children
        kind = self.type(_node(type))
        start = None if initial is None else self.initial(_token(_node(initial).children[0]))
        keyword = str(_node(role).children[0])
        return [Input(keyword, self.define(_token(name), kind, scope), start) for name in names]

    def initial(self, token: Token) -> str | bool | int | float:
        return _text(token) if token.type in ("NAME", "STRING") else _number(token)

    def add(self, table: dict[str, Any], name: Token, what: str) -> None:
        if _text(name) in table:
            self.fail(TWICE, f"{what} {_text(name)} is declared twice", name)

    # ------------------------------------------------------------------ types
    def type(self, node: Node) -> Type:
        if node.data == "vec":
            return VecType(_text(node.children[0]))
        if node.data == "tree":
            group, dtype = node.children
            return TreeType(_text(group), None if dtype is None else self.dtype(_token(dtype)))
        name, dims, weak = node.children
        if name == "seed" and dims is None and weak is None:
            return SEED
        shape = () if dims is None else tuple(int(_token(dim)) for dim in _node(dims).children)
        return TensorType(self.dtype(_token(name)), shape, weak is not None)

    def dtype(self, token: Token) -> str:
        known = [*DTYPES, "tree", "vec", "seed"]
        if token not in DTYPES:
            message = f"no dtype {token}{suggestion(token, known)}"
            self.fail(UNKNOWN, message, token, f"Known: {', '.join(known)}.")
        return str(token)

    # ------------------------------------------------------------------ values
    def define(self, token: Token, type: Type, scope: _Scope) -> Value:
        name = _text(token)
        if name in scope.given:
            message = f"%{name} is already defined in line {scope.given[name]}"
            self.fail(
                TWICE, message, token, "Names are unique in a program: give this one another."
            )
        scope.given[name] = token.line or 0
        scope.visible[name] = value = Value(type, name)
        return value

    def use(self, token: Token, scope: _Scope) -> Value:
        name = _text(token)
        if name in scope.visible:
            return scope.visible[name]
        if name in scope.given:
            message = f"%{name} of line {scope.given[name]} is not visible outside its region"
            self.fail(ORDER, message, token)
        self.fail(UNKNOWN, f"no value %{name}{suggestion(name, scope.visible, '%')}", token)

    def operand(self, token: Token, scope: _Scope) -> Value | Literal:
        return self.use(token, scope) if token.type == "VALUE" else Literal(_number(token))

    # ------------------------------------------------------------------ ops
    def body(self, node: Node, outer: _Scope) -> Region:
        captures, *ops = node.children
        scope = _Scope()
        scope.visible = dict(outer.visible)
        scope.given = outer.given
        region = Region()
        for capture in [] if captures is None else _node(captures).children:
            name, type = _node(capture).children
            region.params.append(self.define(_token(name), self.type(_node(type)), scope))
        region.ops = [self.op(_node(op), scope) for op in ops if op is not None]
        return region

    def op(self, node: Node, scope: _Scope) -> Op:
        results, name, symbol, given, table, keywords, body, types, location = node.children
        cls = self.op_class(_token(name))
        positional = [self.operand(_token(t), scope) for t in _children(given)]
        attrs, words = self.table(cls, table, scope)
        op = cls(
            self.positions(cls, _token(name), positional, keywords, scope),
            attrs=attrs,
            entries=words,
            symbol=None if symbol is None else _text(symbol),
            body=None if body is None else self.body(_node(body), scope),
            location=None if location is None else _text(_node(location).children[0]),
        )
        names = [_token(child) for child in _children(results)]
        kinds = [self.type(_node(child)) for child in _children(types)]
        if len(names) != len(kinds):
            message = f"{name}: {len(names)} results, {len(kinds)} types"
            self.fail(SHAPE, message, _token(name), "Write one type per result after `:`.")
        op.results = [self.define(n, kind, scope) for n, kind in zip(names, kinds, strict=True)]
        return op

    def op_class(self, name: Token) -> type[Op]:
        if str(name) in ROLES:
            message = f"input `{name}` after the first op"
            self.fail(SYNTAX, message, name, "Declare inputs before the program's first op.")
        if str(name) not in OPS:
            near = suggestion(name, [*OPS, *ROLES])
            self.fail(UNKNOWN, f"no op or role {name}{near}", name, f"Ops: {', '.join(OPS)}.")
        return OPS[str(name)]

    def positions(
        self,
        cls: type[Op],
        name: Token,
        positional: list[Value | Literal],
        keywords: Any,
        scope: _Scope,
    ) -> dict[str, list[Value | Literal]]:
        required = [d.name for d in cls.schema(operand)]
        rest = [d.name for d in cls.schema(variadic)]
        count = len(positional)
        if count < len(required) or (count > len(required) and not rest):
            wanted = f"{len(required)} operands ({', '.join(required)})" if required else "none"
            self.fail(SHAPE, f"{name} takes {wanted}, found {count}", name)
        found = {key: [positional[i]] for i, key in enumerate(required)}
        if rest:
            found[rest[0]] = positional[len(required) :]
        for keyword in _children(keywords):
            key, *values = map(_token, keyword.children)
            known = [d.name for d in cls.schema(operands)]
            if str(key) not in known:
                self.fail(UNKNOWN, f"{name} has no {key}(){suggestion(key, known)}", key)
            if str(key) in found:
                self.fail(TWICE, f"{name} has {key}() twice", key)
            found[str(key)] = [self.operand(value, scope) for value in values]
        return found

    def table(
        self, cls: type[Op], table: Any, scope: _Scope
    ) -> tuple[dict[str, Attr], dict[str, Value | Literal]]:
        rows = [_node(row) for row in _children(table) if row is not None]
        if cls.schema(entries):
            return {}, self.entries(rows, scope)
        known = [d.name for d in cls.schema(attr)]
        for row in rows:
            key = _token(row.children[0])
            if _text(key) not in known:
                near = suggestion(_text(key), known)
                self.fail(UNKNOWN, f"{cls.mnemonic} has no attribute {_text(key)}{near}", key)
        return self.attributes(rows), {}

    def entries(self, rows: list[Node], scope: _Scope) -> dict[str, Value | Literal]:
        found: dict[str, Value | Literal] = {}
        for row in rows:
            key, value = row.children
            self.add(found, _token(key), "entry")
            if not _is_token(value) or _token(value).type in ("NAME", "STRING"):
                self.fail(SHAPE, f"{_text(key)} takes a value or a number", _token(key))
            found[_text(key)] = self.operand(_token(value), scope)
        return found

    def attributes(self, rows: list[Node]) -> dict[str, Attr]:
        found: dict[str, Attr] = {}
        for row in rows:
            key, value = row.children
            self.add(found, _token(key), "attribute")
            if not _is_token(value):
                items = [item for item in _node(value).children if item is not None]
                found[_text(key)] = tuple(map(_text, items))
                continue
            token = _token(value)
            if token.type == "VALUE":
                self.fail(SHAPE, f"attribute {_text(key)} takes no value", token)
            found[_text(key)] = self.initial(token)
        return dict(sorted(found.items()))


def _is_token(child: Any) -> bool:
    return isinstance(child, str)


def _token(child: Any) -> Token:
    assert isinstance(child, str)
    return child  # type: ignore[return-value]


def _node(child: Any) -> Node:
    assert child is not None
    assert not isinstance(child, str)
    return child


def _children(node: Any) -> list[Any]:
    return [] if node is None else node.children


def _text(token: Any) -> str:
    """A token's name without sigil and quotes."""
    text = str(token)
    if token.type in ("VALUE", "SYMBOL"):
        text = text[1:]
    return json.loads(text) if text.startswith('"') else text


def _number(token: Token) -> bool | int | float:
    if token.type in _NUMBERS:
        return _NUMBERS[token.type]
    return int(token) if token.type == "INT" else float(token)
