"""Small programs in StableHLO text, and their interfaces."""

from __future__ import annotations

from dataclasses import dataclass

from nitro_runtime import pjrt


@dataclass(frozen=True)
class Entry:
    name: str
    dtype: str = "f32"
    shape: tuple[int, ...] = (4,)


# p + scale is written over p; the report is the sum.
STEP = """module @m {
  func.func public @main(%p: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4xf32>,
                         %n: tensor<i64>) -> (tensor<4xf32>, tensor<i64>) {
    %q = stablehlo.add %p, %x : tensor<4xf32>
    %m = stablehlo.add %n, %n : tensor<i64>
    return %q, %m : tensor<4xf32>, tensor<i64>
  }
}"""
STEP_ARGS = (Entry("p"), Entry("x"), Entry("n", "i64", ()))
STEP_RESULTS = (Entry("p"), Entry("report", "i64", ()))


def step(device: pjrt.Device) -> pjrt.Executable:
    return pjrt.compile(STEP, device, STEP_ARGS, STEP_RESULTS, donate=[(0, 0)])
