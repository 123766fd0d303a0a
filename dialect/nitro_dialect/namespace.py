"""The array-API names a rule may use on IR values; numpy and jnp have the same ones."""

from __future__ import annotations

from typing import NoReturn

from nitro_dialect.builder import emit_scalar
from nitro_dialect.errors import suggestion
from nitro_dialect.ir import Operand, Value


class IRNamespace:
    """`sqrt exp log ...` for values of the dialect; what is missing here is no element-wise op."""

    def __getattr__(self, name: str) -> NoReturn:
        known = sorted(n for n in dir(type(self)) if not n.startswith("_"))
        near = suggestion(name, known, "xp.") or f"; known: {', '.join(known)}"
        raise AttributeError(f"xp.{name} has no meaning on IR values{near}", name=name, obj=self)

    def sqrt(self, x: Value) -> Value:
        return emit_scalar("sqrt", x)

    def exp(self, x: Value) -> Value:
        return emit_scalar("exp", x)

    def log(self, x: Value) -> Value:
        return emit_scalar("log", x)

    def tanh(self, x: Value) -> Value:
        return emit_scalar("tanh", x)

    def abs(self, x: Value) -> Value:
        return emit_scalar("abs", x)

    def sign(self, x: Value) -> Value:
        return emit_scalar("sign", x)

    def floor(self, x: Value) -> Value:
        return emit_scalar("floor", x)

    def isfinite(self, x: Value) -> Value:
        return emit_scalar("is_finite", x)

    def square(self, x: Value) -> Value:
        return emit_scalar("mul", x, x)

    def logical_not(self, x: Value) -> Value:
        return emit_scalar("not", x)

    def logical_and(self, a: Value, b: Value) -> Value:
        return emit_scalar("and", a, b)

    def logical_or(self, a: Value, b: Value) -> Value:
        return emit_scalar("or", a, b)

    def equal(self, a: Operand, b: Operand) -> Value:
        """`==` on values is their identity, as Python's sets and dicts need it."""
        return emit_scalar("eq", a, b)

    def not_equal(self, a: Operand, b: Operand) -> Value:
        return emit_scalar("ne", a, b)

    def maximum(self, a: Operand, b: Operand) -> Value:
        return emit_scalar("max", a, b)

    def minimum(self, a: Operand, b: Operand) -> Value:
        return emit_scalar("min", a, b)

    def pow(self, a: Operand, b: Operand) -> Value:
        return emit_scalar("pow", a, b)

    def where(self, condition: Value, a: Operand, b: Operand) -> Value:
        """`a` where `condition`, else `b`; one of them is a value."""
        return emit_scalar("select", condition, a, b)


NAMESPACE = IRNamespace()
