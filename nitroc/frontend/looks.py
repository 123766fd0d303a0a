# pyright: basic
"""The StableHLO functions that look at floats and judge operations, as text; `NAME` is their name.

They are few and large, not many and small: of a network with a thousand operations a backend has
to compile them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nitroc.frontend.harvest import NONE
from nitroc.frontend.jax_internals import ir

Places = Sequence[Sequence[int]]


def looking(kind: Any, literal: bool) -> str:
    """From a tensor to `(clean, finite)`, i1[1] each: no element is NaN, all are finite.

    A literal's NaN is not one: the operation that lets it into the data has made it.
    """
    tensor = ir.RankedTensorType(kind)
    element, rank = tensor.element_type, tensor.rank
    shape = "".join(f"{size}x" for size in tensor.shape)
    truth = f"tensor<{shape}i1>"
    if isinstance(element, ir.ComplexType):
        parts, spelled = ("real", "imag"), str(element.element_type)
    else:  # not every backend compares the narrow ones
        parts, spelled = ("convert",), str(element) if element.width >= 32 else "f32"
    number = f"tensor<{shape}{spelled}>"
    lines = ["%true = stablehlo.constant dense<true> : tensor<i1>"]
    for part in parts:
        lines += [
            f"%{part} = stablehlo.{part} %x : ({kind}) -> {number}",
            f"%clean_{part} = stablehlo.compare EQ, %{part}, %{part}, FLOAT "
            f": ({number}, {number}) -> {truth}",
            f"%finite_{part} = stablehlo.is_finite %{part} : ({number}) -> {truth}",
        ]
    results: list[str] = []
    for name in ("clean", "finite"):
        first, last = f"%{name}_{parts[0]}", f"%{name}_{parts[-1]}"
        lines += [
            f"%{name} = stablehlo.and {first}, {last} : {truth}",
            f"%{name}_all = {_all(f'%{name}', truth, range(rank), 'tensor<i1>')}",
        ]
        result = "%true" if literal and name == "clean" else f"%{name}_all"
        lines.append(f"%{name}_1 = stablehlo.reshape {result} : (tensor<i1>) -> tensor<1xi1>")
        results.append(f"%{name}_1")
    return _function(f"%x: {kind}", lines, results, ["tensor<1xi1>"] * 2)


def judging(numbers: Sequence[int], made: Places, given: Places, looks: int, size: int) -> str:
    """From `(clean, finite, start, numbers)` to the entries of `first` for n operations of a block.

    clean, finite: i1 of `looks` values, in which `made` and `given` are the places of each
    operation's results and operands. start, numbers: operation i has the number of `numbers`, i32
    of `size`, at `start + numbers[i]`.
    """
    n = len(numbers)
    truth, whole = f"tensor<{n}xi1>", f"tensor<{n}xi32>"
    lines = ["%true = stablehlo.constant dense<true> : tensor<i1>"]
    for name in ("clean", "finite"):
        lines += _picked(f"%{name}", "made", made, looks)
        lines += _picked(f"%{name}", "given", given, looks)
    lines += [
        f"%places = stablehlo.constant dense<{list(numbers)}> : {whole}",
        f"%starts = stablehlo.broadcast_in_dim %start, dims = [] : (tensor<i32>) -> {whole}",
        f"%at = stablehlo.add %places, %starts : {whole}",
        f"%own = {_gather('%numbers', f'tensor<{size}xi32>', '%at', whole, whole, 1)}",
        f"%none = stablehlo.constant dense<{NONE}> : {whole}",
        f"%last = stablehlo.constant dense<{NONE}> : tensor<i32>",
        # of two truths, one is less than the other where it alone is false
        _less("nan", "%clean_made", "%clean_given", truth),
        _less("held_infinite", "%finite_made", "%clean_made", truth),
        f"%held_nan = stablehlo.not %clean_made : {truth}",
        f"%infinite = stablehlo.and %held_infinite, %finite_given : {truth}",
    ]
    for name in ("nan", "infinite", "held_nan", "held_infinite"):
        lines += [
            f"%{name}_own = stablehlo.select %{name}, %own, %none : {truth}, {whole}",
            f"%{name}_first = stablehlo.reduce(%{name}_own init: %last) applies stablehlo.minimum "
            f"across dimensions = [0] : ({whole}, tensor<i32>) -> tensor<i32>",
            f"%{name}_1 = stablehlo.reshape %{name}_first : (tensor<i32>) -> tensor<1xi32>",
        ]
    lines.append(
        "%first = stablehlo.concatenate %nan_1, %infinite_1, %held_nan_1, %held_infinite_1, "
        "dim = 0 : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<4xi32>"
    )
    looked = f"tensor<{looks}xi1>"
    parameters = (
        f"%clean: {looked}, %finite: {looked}, %start: tensor<i32>, %numbers: tensor<{size}xi32>"
    )
    return _function(parameters, lines, ["%first"], ["tensor<4xi32>"])


def _picked(looks: str, what: str, places: Places, count: int) -> list[str]:
    """`<looks>_<what>`: whether all looks of an operation's values say so; of no values, yes."""
    n, most = len(places), max(map(len, places))
    name, out = f"{looks}_{what}", f"tensor<{n}xi1>"
    if not most:
        return [f"{name} = stablehlo.constant dense<true> : {out}"]
    rows = [[*row, *([row[0]] * (most - len(row)))] if row else [-1] * most for row in places]
    indices, each = f"tensor<{n}x{most}xi32>", f"tensor<{n}x{most}xi1>"
    longer = f"tensor<{count + 1}xi1>"
    # an operation without floats among its operands reads the last entry, which is true
    filled = [[count if place < 0 else place for place in row] for row in rows]
    return [
        f"{name}_last = stablehlo.constant dense<true> : tensor<1xi1>",
        f"{name}_from = stablehlo.concatenate {looks}, {name}_last, dim = 0 "
        f": (tensor<{count}xi1>, tensor<1xi1>) -> {longer}",
        f"{name}_at = stablehlo.constant dense<{filled}> : {indices}",
        f"{name}_each = {_gather(f'{name}_from', longer, f'{name}_at', indices, each, 2)}",
        f"{name} = {_all(f'{name}_each', each, [1], out)}",
    ]


def _gather(operand: str, kind: str, indices: str, at: str, result: str, rank: int) -> str:
    return (
        f'"stablehlo.gather"({operand}, {indices}) <{{dimension_numbers = #stablehlo.gather<'
        f"collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {rank}>, "
        f"indices_are_sorted = false, slice_sizes = array<i64: 1>}}> : ({kind}, {at}) -> {result}"
    )


def _all(value: str, kind: str, dimensions: Sequence[int], result: str) -> str:
    if not dimensions:
        return f"stablehlo.and {value}, %true : {kind}"
    return (
        f"stablehlo.reduce({value} init: %true) applies stablehlo.and across dimensions = "
        f"{list(dimensions)} : ({kind}, tensor<i1>) -> {result}"
    )


def _less(name: str, a: str, b: str, kind: str) -> str:
    return f"%{name} = stablehlo.compare LT, {a}, {b}, UNSIGNED : ({kind}, {kind}) -> {kind}"


def _function(given: str, lines: list[str], results: list[str], kinds: list[str]) -> str:
    body = "\n".join([*lines, f"return {', '.join(results)} : {', '.join(kinds)}"])
    return f"func.func private @NAME({given}) -> ({', '.join(kinds)}) {{\n{body}\n}}"
