"""How micro-batches combine: numpy, StableHLO's interpreter and XLA agree, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emission import assert_same, emit_case
from reference import run_program

from nitro_dialect import parse

TEXT = """module @M version 1 pipeline "" left "" {
  program @p {
    batch %f : f32[3]
    batch %i : i32[3]
    batch %n : i64[3]
    %sum, %count, %high, %low, %most, %least = accum {how = [sum, sum, max, min, max, min], steps = 3} over(%f, %i, %n) (%k : i32, %f.k : f32, %i.k : i32, %n.k : i64) {
      yield %f.k, %n.k, %f.k, %f.k, %i.k, %i.k
    } : f32, i64, f32, f32, i32, i32
    report {sum = %sum, count = %count, high = %high, low = %low, most = %most, least = %least}
  }
}
"""  # noqa: E501
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("f", [[1.5, -2, 0.25], [-1, -3, -2], [-INF, 1, INF], [1, NAN, 2]])
@pytest.mark.parametrize("i", [[1, 3, 2], [-5, -4, -(2**31)]])
@pytest.mark.parametrize("n", [[1, 2, 3], [2**40, 2**24 + 1, 1], [2**62, 2**61, -1]])
def test_each_how_in_each_dtype(f: list[float], i: list[int], n: list[int]) -> None:
    given: dict[str, Any] = {"f": np.float32(f), "i": np.int32(i), "n": np.int64(n)}
    case = emit_case(TEXT, program="p")
    wanted = run_program(parse(TEXT), "p", given, {}).report
    assert wanted["count"] == sum(n)
    assert wanted["most"] == max(i)
    for made in (case.run(given)["report"], case.interpret(given)["report"]):
        assert made["count"] == sum(n)
        assert_same({k: v for k, v in made.items() if not np.isnan(v)},
                    {k: v for k, v in wanted.items() if not np.isnan(v)})  # fmt: skip
