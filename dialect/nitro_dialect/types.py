"""Types of values: tensors (a scalar is a tensor of rank 0), whole groups, one word per leaf.

A group stays one value from the first dump to emission, so the text of a program has the same
length for 4 leaves and for 400.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

FLOATS = ("f64", "f32", "bf16", "f16", "f8E4M3FN", "f8E5M2")
NARROW = ("bf16", "f16", "f8E4M3FN", "f8E5M2")
"""Floats narrower than f32."""

INTS = ("i64", "i32", "i16", "i8", "ui64", "ui32", "ui16", "ui8")
DTYPES = (*FLOATS, *INTS, "i1", "c64", "c128")


@dataclass(frozen=True)
class TensorType:
    """`f32[2,32]`, or a scalar `f32`. `weak` is jax's weak typing; no op's check depends on it."""

    dtype: str
    shape: tuple[int, ...] = ()
    weak: bool = False

    def __str__(self) -> str:
        dims = f"[{','.join(map(str, self.shape))}]" if self.shape else ""
        return f"{self.dtype}{dims}{' weak' if self.weak else ''}"


@dataclass(frozen=True)
class TreeType:
    """`tree<G>`: one tensor per leaf of group G, in the leaf's dtype or, when given, in `dtype`."""

    group: str
    dtype: str | None = None

    def __str__(self) -> str:
        return f"tree<{self.group}>" if self.dtype is None else f"tree<{self.group}, {self.dtype}>"


@dataclass(frozen=True)
class VecType:
    """`vec<G>`: one f32 per leaf of group G, in the order of the group's table."""

    group: str

    def __str__(self) -> str:
        return f"vec<{self.group}>"


@dataclass(frozen=True)
class SeedType:
    """`seed`: two ui32 words, high word first, of the run's 64-bit seed."""

    def __str__(self) -> str:
        return "seed"


Type: TypeAlias = TensorType | TreeType | VecType | SeedType

F32 = TensorType("f32")
I1 = TensorType("i1")
I32 = TensorType("i32")
I64 = TensorType("i64")
UI32 = TensorType("ui32")
SEED = SeedType()
WORDS = TensorType("ui32", (2,))


def strong(type: Type) -> Type:
    """`type` without its weak mark: what equality of types is decided on."""
    return replace(type, weak=False) if isinstance(type, TensorType) else type


def same(a: Type, b: Type) -> bool:
    return strong(a) == strong(b)


def is_scalar(type: Type, *dtypes: str) -> bool:
    """Whether `type` is a tensor of rank 0, of one of `dtypes` when any are given."""
    return isinstance(type, TensorType) and not type.shape and (not dtypes or type.dtype in dtypes)
