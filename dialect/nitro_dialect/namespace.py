"""The array-API names a rule may use on IR values; numpy and jnp have the same ones."""

from __future__ import annotations

from typing import NoReturn

from nitro_dialect.builder import current, emit, emit_scalar, varies
from nitro_dialect.errors import suggestion
from nitro_dialect.ir import Operand, Value
from nitro_dialect.ops import LeafFold, LeafSize
from nitro_dialect.types import F32, I1, same


class PartOfLeaf(TypeError):
    """A reduction that needs more of a leaf than the set of its elements: an axis, an order."""


class IRNamespace:
    """`sqrt exp log ...` for values of the dialect; what is missing here is no element-wise op.

    `sum mean max min any all ...` reduce over the leaf at hand to one f32 (i1 for `any all`); of a
    value that is one for the whole leaf they give that of an array of rank 0.
    """

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

    def isnan(self, x: Value) -> Value:
        return emit_scalar("ne", x, x)

    def isinf(self, x: Value) -> Value:
        return emit_scalar("eq", self.abs(x), float("inf"))

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

    def sum(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("sum", axis, keepdims)
        return _fold("sum", _number(x))

    def mean(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("mean", axis, keepdims)
        number = _number(x)
        return _fold("sum", number) / _size() if varies(number) else number

    def max(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("max", axis, keepdims)
        return _fold("max", _number(x))

    def min(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("min", axis, keepdims)
        return _fold("min", _number(x))

    def any(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("any", axis, keepdims)
        return emit_scalar("gt", _fold("max", _number(_truth(x))), 0.0)

    def all(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("all", axis, keepdims)
        return emit_scalar("gt", _fold("min", _number(_truth(x))), 0.0)

    def count_nonzero(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("count_nonzero", axis, keepdims)
        return _fold("sum", _number(_truth(x)))

    def var(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        _whole("var", axis, keepdims)
        distance = x - self.mean(x)
        return self.mean(distance * distance)

    def std(self, x: Value, *, axis: None = None, keepdims: bool = False) -> Value:
        return self.sqrt(self.var(x, axis=axis, keepdims=keepdims))

    @property
    def linalg(self) -> IRLinalg:
        return IRLinalg()


class IRLinalg:
    """`xp.linalg` for values of the dialect."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"xp.linalg.{name} has no meaning on IR values; known: vector_norm", name=name, obj=self
        )

    def vector_norm(
        self, x: Value, *, axis: None = None, keepdims: bool = False, ord: float = 2
    ) -> Value:
        _whole("vector_norm", axis, keepdims)
        if ord != 2:
            raise PartOfLeaf(f"vector_norm of order {ord}: only the 2-norm is here")
        return NAMESPACE.sqrt(_fold("sum", x * x))


def _whole(name: str, axis: object, keepdims: bool) -> None:
    if axis is not None or keepdims:
        raise PartOfLeaf(f"{name} along an axis: a rule knows a leaf as a set of elements")


def _fold(how: str, x: Value) -> Value:
    """`x` over the leaf; as it is where it is one value for all elements."""
    if not varies(x):
        return x
    hint = current().names.origin(how, [x])
    return emit(LeafFold, x, types=[F32], hints=[hint], attrs={"how": how}).r


def _size() -> Value:
    return emit(LeafSize, types=[F32], hints=["leaf.size"]).r


def _number(x: Value | float) -> Value:
    """A condition as 0 or 1; TypeError for a Python number."""
    if not isinstance(x, Value):
        raise TypeError(f"a reduction of the number {x!r}: there is no leaf to reduce")
    return emit_scalar("convert", x, type=F32) if same(x.type, I1) else x


def _truth(x: Value | float) -> Value:
    if isinstance(x, Value) and same(x.type, I1):
        return x
    return emit_scalar("ne", _number(x), 0.0)


NAMESPACE = IRNamespace()
