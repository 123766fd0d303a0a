"""One rule per core op, each against its numpy meaning, by the interpreter and through XLA."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emission import Values, assert_close, assert_same, emit_case

from nitro_dialect.op import OPS
from nitro_runtime import pjrt
from nitroc.emit.leaf import OF_LEAVES
from nitroc.emit.program import RULES
from nitroc.emit.scope import ENDS
from nitroc.errors import BuildError

MODES = ("auto", "flat", "leaves")


def test_every_core_op_has_one_rule() -> None:
    core = {name for name, op in OPS.items() if op.level == "core"}
    assert {*RULES, *ENDS, *OF_LEAVES} == core
    assert not set(RULES) & set(ENDS)


def program(inputs: str, body: str, groups: str = "", devices: str = "") -> str:
    return f"""module @Small version 1 pipeline "" left "" {{
{devices}
{groups}
  program @reduce.b1.r1 {{
{inputs}
{body}
  }}
}}
"""


def both(text: str, given: Values, mode: str = "auto") -> Values:
    """The values XLA gives, after the interpreter gave the same ones."""
    case = emit_case(text, program="reduce.b1.r1", mode=mode)
    run = case.run(given)
    assert_close(run, case.interpret(given))
    return run


def scalar_math(op: str, operands: str, kind: str, result: str, **given: Any) -> Any:
    names = ", ".join("%" + n for n in given)
    text = program(
        f"    scalars {names} : {kind}",
        f"    %r = {op} {operands} : {result}\n    report {{r = %r}}",
    )
    return both(text, given)["report"]["r"]


UNARY = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log,
    "tanh": np.tanh, "sign": np.sign, "floor": np.floor, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
COMPARE = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary_math(op: str) -> None:
    for x in (2.7, 0.3):
        made = scalar_math(op, "%x", "f32", "f32", x=x)
        assert_close(made, UNARY[op](np.float32(x)))


@pytest.mark.parametrize("op", BINARY)
def test_binary_math_with_values_and_literals(op: str) -> None:
    a, b = np.float32(1.7), np.float32(0.3)
    assert_close(scalar_math(op, "%a, %b", "f32", "f32", a=a, b=b), BINARY[op](a, b))
    assert_close(scalar_math(op, "%a, 0.5", "f32", "f32", a=a), BINARY[op](a, np.float32(0.5)))
    assert_close(scalar_math(op, "2.5, %b", "f32", "f32", b=b), BINARY[op](np.float32(2.5), b))


@pytest.mark.parametrize("op", ["min", "max"])
def test_min_and_max_propagate_nan(op: str) -> None:
    assert math.isnan(scalar_math(op, "%a, 1.0", "f32", "f32", a=math.nan))
    assert math.isnan(scalar_math(op, "1.0, %a", "f32", "f32", a=math.nan))


@pytest.mark.parametrize("op", COMPARE)
@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_comparisons(op: str, kind: str) -> None:
    for a, b in ((1, 2), (2, 2), (-3, 2)):
        assert scalar_math(op, "%a, %b", kind, "i1", a=a, b=b) == COMPARE[op](a, b)
    if kind == "f32":
        found = scalar_math(op, "%a, %b", kind, "i1", a=math.nan, b=1.0)
        assert found == (op == "ne")


@pytest.mark.parametrize(("a", "b"), [(False, False), (True, False), (True, True)])
def test_logic_on_bools(a: bool, b: bool) -> None:
    assert scalar_math("and", "%a, %b", "i1", "i1", a=a, b=b) == (a and b)
    assert scalar_math("or", "%a, %b", "i1", "i1", a=a, b=b) == (a or b)
    assert scalar_math("not", "%a", "i1", "i1", a=a) == (not a)
    assert scalar_math("and", "%a, true", "i1", "i1", a=a) == a


@pytest.mark.parametrize("x", [1.0, math.nan, math.inf, -math.inf])
def test_is_finite(x: float) -> None:
    assert scalar_math("is_finite", "%x", "f32", "i1", x=x) == math.isfinite(x)


@pytest.mark.parametrize("chosen", [True, False])
def test_select_and_convert(chosen: bool) -> None:
    text = program(
        "    scalars %c : i1\n    scalars %n : i32",
        "    %f = convert %n : f32\n    %s = select %c, %f, -1.5 : f32\n"
        "    %k = convert %s : i64\n    report {s = %s, k = %k}",
    )
    made = both(text, {"c": chosen, "n": 7})["report"]
    assert made == ({"s": 7.0, "k": 7} if chosen else {"s": -1.5, "k": -1})


# Words in and out


@pytest.mark.parametrize("bits", [0, -1, 2**31 - 1, -(2**31), 0x7F800001, -0x400001])
def test_i32_scalars_keep_every_bit(bits: int) -> None:
    """Some of these are signalling NaN as f32: the packed words must not be touched as floats."""
    text = program(
        "    scalars %a : f32 weak\n    scalars %n : i32 weak\n    scalars %c : i1",
        "    report {a = %a, n = %n, c = %c}",
    )
    made = both(text, {"a": 0.5, "n": bits, "c": bits != 0})["report"]
    assert made == {"a": 0.5, "n": bits, "c": bits != 0}


def test_a_bool_scalar_is_true_for_any_bit() -> None:
    case = emit_case(
        program("    scalars %c : i1 weak", "    report {c = %c}"), program="reduce.b1.r1"
    )
    device = pjrt.devices("cpu")[0]
    for word in (1, 2, 0x80000000, 0x7FC00000):
        packed = np.array([word], np.uint32).view(np.float32)
        assert pjrt.read(case.executable([pjrt.put(packed, device)])[0])[0] == 1, hex(word)


@pytest.mark.parametrize("n", [0, 5, 2**32 + 9, 2**31, -1, -(2**40) - 7])
def test_i64_words_are_high_word_first(n: int) -> None:
    text = program(
        "    slot %t : i64 = 0",
        "    %w = words %t : ui32[2]\n    report {t = %t}\n    output {w = %w}",
    )
    made = both(text, {"t": n})
    assert_same(made["w"], np.array([n >> 32 & 0xFFFFFFFF, n & 0xFFFFFFFF], np.uint32))
    assert made["report"]["t"] == n


# Groups

GROUP = """  group default : param {
    a : f32[3] {}
    b : f32[2,3] {decay}
    c : f32 {}
    d : bf16[4] {decay}
    e : bf16 {}
  }
  group state : state {
  }"""
TREE = "    param %p : tree<default>"


def leaves(seed: int = 0) -> Values:
    rng = np.random.default_rng(seed)
    bf16 = ml_dtypes.bfloat16
    return {
        "a": rng.normal(size=3).astype(np.float32),
        "b": rng.normal(size=(2, 3)).astype(np.float32),
        "c": rng.normal(size=()).astype(np.float32),
        "d": rng.normal(size=4).astype(bf16),
        "e": rng.normal(size=()).astype(bf16),
    }


@pytest.mark.parametrize("mode", MODES)
def test_map_is_in_f32_and_passes_unflagged_leaves_through(mode: str) -> None:
    text = program(
        f"{TREE}\n    slot %u : tree<default, f32> = zeros\n    scalars %k : f32",
        """    %v, %w = map %p, %u {where = decay} (%x : f32, %y : f32) {
      %big = gt %x, 0.0 : i1
      %z = mul %k, %y : f32
      %s = add %x, %z : f32
      %r = select %big, %s, 9.0 : f32
      yield %r, 2.0
    } : tree<default>, tree<default, f32>
    assign %p, %u from(%v, %w)""",
        GROUP,
    )
    p, u = leaves(), {k: v.astype(np.float32) for k, v in leaves(1).items()}
    made = both(text, {"p": p, "u": u, "k": 0.25}, mode)
    for path, x in p.items():
        wide = x.astype(np.float32)
        moved = np.where(wide > 0, wide + np.float32(0.25) * u[path], np.float32(9))
        flagged = path in ("b", "d")
        assert_close(made["p"][path], moved.astype(x.dtype) if flagged else x, path)
        assert_same(made["u"][path], np.full(x.shape, 2, np.float32) if flagged else wide, path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("how", "reduced"), [("sum", np.sum), ("max", np.max), ("min", np.min)])
def test_fold_and_fold_leaf(how: str, reduced: Any, mode: str) -> None:

    def body(n: str) -> str:
        return (
            f"(%x.{n} : f32) {{\n      %y.{n} = mul %x.{n}, 3.0 : f32\n      yield %y.{n}\n    }}"
        )

    text = program(
        TREE,
        f"""    %all = fold %p {{how = {how}}} {body("a")} : f32
    %each = fold.leaf %p {{how = {how}}} {body("b")} : vec<default>
    %sum = vec.sum %each : f32
    %bad = vec.first_nonfinite %each : i64
    report {{all = %all, sum = %sum, bad = %bad}}""",
        GROUP,
    )
    p = leaves()
    each = [reduced(3 * x.astype(np.float32)) for x in p.values()]
    made = both(text, {"p": p}, mode)["report"]
    assert_close(made["all"], np.float32(reduced(each)))
    assert_close(made["sum"], np.float32(sum(each)))
    assert made["bad"] == -1
    p["d"][1] = np.inf
    p["c"] = np.full_like(p["c"], np.nan)
    assert both(text, {"p": p}, mode)["report"]["bad"] == 2


@pytest.mark.parametrize("how", ["max", "min"])
def test_a_wide_maximum_keeps_nan(how: str) -> None:
    text = program(
        TREE,
        f"""    %all = fold %p {{how = {how}}} (%x : f32) {{
      yield %x
    }} : f32
    report {{all = %all}}""",
        "  group default : param {\n    w : f32[100,100] {}\n    v : f32[3] {}\n  }",
    )
    w, v = np.ones((100, 100), np.float32), np.zeros(3, np.float32)
    case = emit_case(text, program="reduce.b1.r1")
    assert case.run({"p": {"w": w, "v": v}})["report"]["all"] == (1 if how == "max" else 0)
    w[71, 3] = np.nan
    assert math.isnan(case.run({"p": {"w": w, "v": v}})["report"]["all"])


def test_a_group_without_leaves_has_no_buffer_and_neutral_sums() -> None:
    text = program(
        f"{TREE}\n    state %s : tree<state>",
        """    %s.next = map %s {where = ""} (%x : f32) {
      yield %x
    } : tree<state>
    %each = fold.leaf %s {how = sum} (%y : f32) {
      yield %y
    } : vec<state>
    %sum = vec.sum %each : f32
    %all = fold %s {how = sum} (%z : f32) {
      yield %z
    } : f32
    %bad = vec.first_nonfinite %each : i64
    assign %s from(%s.next)
    report {sum = %sum, all = %all, bad = %bad}""",
        GROUP,
    )
    made = both(text, {"p": leaves(), "s": {}})
    assert made["report"] == {"sum": 0.0, "all": 0.0, "bad": -1}
    assert "s" not in made


def test_A04_sum_of_squares_of_bf16_is_in_f32() -> None:
    text = program(
        TREE,
        """    %sq = fold.leaf %p {how = sum} (%x : f32) {
      %y = mul %x, %x : f32
      yield %y
    } : vec<default>
    %total = vec.sum %sq : f32
    %norm = sqrt %total : f32
    %scale = div 100.0, %norm : f32
    report {scale = %scale}""",
        "  group default : param {\n    w : bf16[700,100] {}\n  }",
    )
    case = emit_case(text, program="reduce.b1.r1")
    made = case.run({"p": {"w": np.ones((700, 100), ml_dtypes.bfloat16)}})
    assert abs(made["report"]["scale"] - 100 / math.sqrt(70_000)) < 1e-6
    (line,) = [x for x in case.emitted.text.splitlines() if "stablehlo.reduce(" in x]
    assert "tensor<70000xf32>" in line
    assert "bf16" not in line


# Refusals


def test_a_named_op_is_refused_by_name() -> None:
    text = program(
        TREE,
        """    %sq = fold.leaf %p {how = sum} (%x : f32) {
      yield %x
    } : vec<default>
    %n = norm %sq : f32
    report {n = %n}""",
        GROUP,
    )
    with pytest.raises(BuildError, match=r"E-BUILD-023: norm has no emission rule.*\n.*expand"):
        emit_case(text, program="reduce.b1.r1")


def test_an_unknown_program_names_the_close_one() -> None:
    with pytest.raises(BuildError, match=r"E-BUILD-026.*\n.*did you mean 'reduce.b1.r1'"):
        emit_case(program(TREE, "    output {p = %p}", GROUP), program="reduce.b1.r2")


def test_a_scalar_of_another_dtype_is_refused() -> None:
    text = program("    scalars %n : i64", "    report {n = %n}")
    with pytest.raises(BuildError, match=r"E-BUILD-024: scalar %n : i64"):
        emit_case(text, program="reduce.b1.r1")
