"""Tokens and trees of a text, and what is read off them alone: names, numbers, types, positions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from nitro_dialect.diagnostics import located
from nitro_dialect.errors import TWICE, UNKNOWN, DialectError, suggestion
from nitro_dialect.types import DTYPES, SEED, TensorType, TreeType, Type, VecType

if TYPE_CHECKING:
    from lark import Token

    from nitro_dialect.syntax import Node

    Child: TypeAlias = Token | Node | None

_NUMBERS = {
    "TRUE": True,
    "FALSE": False,
    "NAN": float("nan"),
    "INF": float("inf"),
    "MINUS_INF": float("-inf"),
}


def children(node: Child) -> list[Child]:
    """A tree's children, none for an optional part that is absent."""
    return [] if node is None else cast("list[Child]", cast("Node", node).children)


def present(node: Child) -> list[Node]:
    """Children that are trees, without the placeholders of absent parts."""
    return [cast("Node", child) for child in children(node) if child is not None]


def tokens(node: Child) -> list[Token]:
    return [cast("Token", child) for child in children(node) if child is not None]


def is_token(child: Child) -> bool:
    return isinstance(child, str)


def name_of(child: Child) -> str:
    """A token's text without sigil and quotes."""
    token = cast("Token", child)
    text = str(token)[1:] if token.type in ("VALUE", "SYMBOL") else str(token)
    return json.loads(text) if text.startswith('"') else text


def optional_name(child: Child) -> str | None:
    return None if child is None else name_of(child)


def number_of(child: Child) -> bool | int | float:
    token = cast("Token", child)
    if token.type in _NUMBERS:
        return _NUMBERS[token.type]
    return int(token) if token.type == "INT" else float(token)


def word_or_number(child: Child) -> str | bool | int | float:
    """A slot's start, an attribute: a name or text, else a number."""
    token = cast("Token", child)
    return name_of(token) if token.type in ("NAME", "STRING") else number_of(token)


class Reader:
    """What every part of a text needs: to say where it is wrong, and to read types."""

    def __init__(self, text: str, source: str | None) -> None:
        self.lines = text.split("\n")
        self.source = source

    def fail(self, number: int, message: str, at: Child, help: str | None = None) -> NoReturn:
        token = cast("Token", at)
        line, column = token.line or 1, token.column or 1
        found = located(number, message, self.lines, line, column, help=help)
        raise DialectError([found], source=self.source)

    def once(self, table: dict[str, Any], name: Child, what: str) -> str:
        """The name, which `table` does not have yet."""
        if name_of(name) in table:
            self.fail(TWICE, f"{what} {name_of(name)} is given twice", name)
        return name_of(name)

    def type(self, child: Child) -> Type:
        node = cast("Node", child)
        if node.data == "vec":
            return VecType(name_of(node.children[0]))
        if node.data == "tree":
            group, dtype = children(node)
            return TreeType(name_of(group), None if dtype is None else self.dtype(dtype))
        name, dims, weak = children(node)
        if str(name) == "seed" and dims is None and weak is None:
            return SEED
        shape = tuple(int(dim) for dim in tokens(dims))
        return TensorType(self.dtype(name), shape, weak is not None)

    def dtype(self, token: Child) -> str:
        known = [*DTYPES, "tree", "vec", "seed"]
        if str(token) not in DTYPES:
            message = f"no dtype {token}{suggestion(str(token), known)}"
            self.fail(UNKNOWN, message, token, f"Known: {', '.join(known)}.")
        return str(token)
