"""The reference itself: a meaning for every op, and the meanings that passes do not reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference
from reference import run_program

from nitro_dialect import parse
from nitro_dialect.op import OPS

GROUP = """
  group g : param {
    a : f32[2] {decay}
    b : bf16[3]
    none : f32[0]
  }
"""


def evaluate(inputs: str, body: str, given: dict[str, Any]) -> dict[str, Any]:
    head = 'module @M version 1 pipeline "" left "" {'
    module = parse(f"{head}{GROUP}  program @f {{\n    {inputs}\n    {body}\n  }}\n}}\n")
    return run_program(module, "f", given, {}).report


def test_every_op_has_a_meaning() -> None:
    for name, cls in OPS.items():
        method = f"op_{name.replace('.', '_')}"
        known = name in reference.SCALAR or hasattr(reference._Machine, method)
        assert known or cls.terminator or name == "assign", name


TREE = {"a": np.float32([1, -3]), "b": np.ones(3, np.float32), "none": np.zeros(0)}


@pytest.mark.parametrize(("how", "expected"), [("sum", 13.0), ("max", 9.0), ("min", 1.0)])
def test_fold(how: str, expected: float) -> None:
    body = f"""%r = fold %p {{how = {how}}} (%e : f32) {{
      %q = mul %e, %e : f32
      yield %q
    }} : f32
    report {{r = %r}}"""
    assert evaluate("param %p : tree<g>", body, {"p": TREE})["r"] == expected


@pytest.mark.parametrize(("bad", "index"), [((), -1), ((1,), 1), ((0, 1), 0)])
def test_first_nonfinite(bad: Sequence[int], index: int) -> None:
    tree = {k: v.astype(np.float32) for k, v in TREE.items()}
    for i in bad:
        tree["ab"[i]] = np.full_like(tree["ab"[i]], np.nan)
    body = """%v = fold.leaf %p {how = sum} (%e : f32) {
      yield %e
    } : vec<g>
    %i = vec.first_nonfinite %v : i64
    report {i = %i}"""
    assert evaluate("param %p : tree<g>", body, {"p": tree})["i"] == index


WORDS = """module @M version 1 pipeline "" left "" {
  func @f (w : ui32[2]) -> (r : f32) from "0a"
  program @f {
    slot %t : i64 = 0
    %w = words %t : ui32[2]
    %r = call @f %w : f32
    report {r = %r}
  }
}
"""


@pytest.mark.parametrize("step", [1, 2**31 - 1, 2**31, 2**32, 2**40 + 5])
def test_words_are_high_then_low(step: int) -> None:
    module = parse(WORDS)
    seen: list[Any] = []

    def call(words: Any) -> Any:
        seen.append(words)
        return 0.0

    run_program(module, "f", {"t": np.int64(step)}, {"f": call})
    high, low = seen[0]
    assert int(high) * 2**32 + int(low) == step
    assert seen[0].dtype == np.uint32
