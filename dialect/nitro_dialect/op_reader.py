"""Ops of a text: one shape for all, their parts sorted by the op's descriptors, names resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_dialect.errors import ORDER, SHAPE, SYNTAX, TWICE, UNKNOWN, suggestion
from nitro_dialect.ir import ROLES, Attr, Literal, Region, Value
from nitro_dialect.op import OPS, Op, attr, entries, operand, operands, variadic
from nitro_dialect.tokens import (
    Reader,
    children,
    is_token,
    name_of,
    number_of,
    optional_name,
    present,
    tokens,
    word_or_number,
)
from nitro_dialect.types import Type

if TYPE_CHECKING:
    from lark import Token

    from nitro_dialect.syntax import Node
    from nitro_dialect.tokens import Child


class Scope:
    """Values that may be used here, and the line of every name given in this program so far."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.visible: dict[str, Value] = dict(outer.visible) if outer else {}
        self.given: dict[str, int] = outer.given if outer else {}


class OpReader(Reader):
    """Reads values, ops and regions."""

    def define(self, token: Token, type: Type, scope: Scope) -> Value:
        name = name_of(token)
        if name in scope.given:
            message = f"%{name} is already defined in line {scope.given[name]}"
            self.fail(TWICE, message, token, "Give it another name: they are unique in a program.")
        scope.given[name] = token.line or 0
        scope.visible[name] = value = Value(type, name)
        return value

    def use(self, token: Token, scope: Scope) -> Value:
        name = name_of(token)
        if name in scope.visible:
            return scope.visible[name]
        if name in scope.given:
            message = f"%{name} of line {scope.given[name]} is not visible outside its region"
            self.fail(ORDER, message, token)
        near = suggestion(name, scope.visible, "%")
        return self.fail(UNKNOWN, f"no value %{name}{near}", token)

    def operand(self, token: Token, scope: Scope) -> Value | Literal:
        return self.use(token, scope) if token.type == "VALUE" else Literal(number_of(token))

    def body(self, node: Child, outer: Scope) -> Region:
        captures, *ops = children(node)
        scope = Scope(outer)
        region = Region()
        for capture in present(captures):
            name, type = children(capture)
            region.params += self.values([name], [self.type(type)], scope)
        region.ops = [self.op(op, scope) for op in ops]
        return region

    def values(self, names: list[Child], types: list[Type], scope: Scope) -> list[Value]:
        pairs = zip(names, types, strict=True)
        return [self.define(name, type, scope) for name, type in pairs]  # type: ignore[arg-type]

    def op(self, node: Child, scope: Scope) -> Op:
        results, name, symbol, given, table, keywords, body, types, location = children(node)
        cls = self.op_class(name)
        positional = [self.operand(token, scope) for token in tokens(given)]
        rows = present(table)
        words = self.entries(rows, scope) if cls.schema(entries) else {}
        op = cls(
            self.positions(cls, name, positional) | self.keywords(cls, keywords, scope),
            attrs={} if cls.schema(entries) else self.attributes(rows, cls),
            entries=words,
            symbol=optional_name(symbol),
            body=None if body is None else self.body(body, scope),
            location=name_of(tokens(location)[0]) if location is not None else None,
        )
        names, kinds = children(results), [self.type(kind) for kind in children(types)]
        if len(names) != len(kinds):
            message = f"{name} has {len(names)} results and {len(kinds)} types"
            self.fail(SHAPE, message, name, "Write one type per result after `:`.")
        op.results = self.values(names, kinds, scope)
        return op

    def op_class(self, name: Child) -> type[Op]:
        key = str(name)
        if key in ROLES:
            message = f"input `{key}` after the first op"
            self.fail(SYNTAX, message, name, "Declare inputs before the program's first op.")
        if key not in OPS:
            near = suggestion(key, [*OPS, *ROLES])
            self.fail(UNKNOWN, f"no op or role {key}{near}", name, f"Ops: {', '.join(OPS)}.")
        return OPS[key]

    def positions(
        self, cls: type[Op], name: Child, given: list[Value | Literal]
    ) -> dict[str, list[Value | Literal]]:
        """Operands before the braces by descriptor: the required ones, then the variadic's."""
        required = [d.name for d in cls.schema(operand)]
        rest = [d.name for d in cls.schema(variadic)]
        if len(given) < len(required) or (len(given) > len(required) and not rest):
            listed = f" ({', '.join(required)})" if required else ""
            message = f"{name} takes {len(required)} operands{listed}, found {len(given)}"
            self.fail(SHAPE, message, name)
        found = {key: [given[i]] for i, key in enumerate(required)}
        return found | {key: given[len(required) :] for key in rest}

    def keywords(
        self, cls: type[Op], node: Child, scope: Scope
    ) -> dict[str, list[Value | Literal]]:
        known = [d.name for d in cls.schema(operands)]
        found: dict[str, list[Value | Literal]] = {}
        for group in present(node):
            key, *values = tokens(group)
            if str(key) not in known:
                near = suggestion(str(key), known)
                self.fail(UNKNOWN, f"{cls.mnemonic} has no {key}(...){near}", key)
            name = self.once(found, key, "operands")
            found[name] = [self.operand(value, scope) for value in values]
        return found

    def entries(self, rows: list[Node], scope: Scope) -> dict[str, Value | Literal]:
        found: dict[str, Value | Literal] = {}
        for key, value in map(children, rows):
            name = self.once(found, key, "entry")
            word = not is_token(value) or getattr(value, "type", "") in ("NAME", "STRING")
            if word:
                self.fail(SHAPE, f"{name} takes a %value or a number", key)
            found[name] = self.operand(value, scope)  # type: ignore[arg-type]
        return found

    def attributes(self, rows: list[Node], cls: type[Op] | None = None) -> dict[str, Attr]:
        """Attributes sorted by name; with `cls`, those it declares only."""
        known = [d.name for d in cls.schema(attr)] if cls else []
        found: dict[str, Attr] = {}
        for key, value in map(children, rows):
            name = self.once(found, key, "attribute")
            if cls is not None and name not in known:
                near = suggestion(name, known)
                self.fail(UNKNOWN, f"{cls.mnemonic} has no attribute {name}{near}", key)
            if getattr(value, "type", "") == "VALUE":
                self.fail(SHAPE, f"attribute {name} takes a constant, found {value}", value)
            listed = not is_token(value)
            found[name] = tuple(map(name_of, tokens(value))) if listed else word_or_number(value)
        return dict(sorted(found.items()))
