"""A bundle small enough to read: one parameter vector, one train and one forward program.

`w` of 3 floats is packed in one buffer; a step subtracts `learning_rate` from each and counts `t`.
Programs are written as StableHLO text, so that a test can also write one that no compiler emits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from nitro_runtime.canonical import digest, dump, identity, parse
from nitro_runtime.manifest import (
    ArgEntry,
    BatchEntry,
    BufferEntry,
    ExperimentEntry,
    FieldEntry,
    FunctionEntry,
    GroupEntry,
    LeafEntry,
    Manifest,
    NumericsEntry,
    ReportWord,
    RequiresEntry,
    ResultEntry,
    ScalarEntry,
    SlotEntry,
    TensorEntry,
)
from nitroc.bundle.assemble import Golden, ProgramPart, assemble

VERSION = "1.13.7"

TRAIN = """
module @train_step {
  func.func public @main(
      %w: tensor<3xf32> {tf.aliasing_output = 0 : i32},
      %t: tensor<i64> {tf.aliasing_output = 1 : i32},
      %scalars: tensor<1x1xf32>, %seed: tensor<2xui32>, %x: tensor<1x1x4x3xf32>,
      %table: tensor<3xf32>, %steps: tensor<i32>
  ) -> (tensor<3xf32>, tensor<i64>, tensor<1x3xui32>) {
    %one = stablehlo.constant dense<1> : tensor<i64>
    %t1 = stablehlo.add %t, %one : tensor<i64>
    %flat = stablehlo.reshape %scalars : (tensor<1x1xf32>) -> tensor<f32>
    %rate = stablehlo.broadcast_in_dim %flat, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %w1 = stablehlo.subtract %w, %rate : tensor<3xf32>
    %loss = func.call @square(%flat) : (tensor<f32>) -> tensor<f32>
    %bits = stablehlo.bitcast_convert %loss : (tensor<f32>) -> tensor<ui32>
    %word = stablehlo.reshape %bits : (tensor<ui32>) -> tensor<1x1xui32>
    %zero = stablehlo.constant dense<0> : tensor<1x1xui32>
    %low = stablehlo.convert %t1 : (tensor<i64>) -> tensor<ui32>
    %count = stablehlo.reshape %low : (tensor<ui32>) -> tensor<1x1xui32>
    %report = stablehlo.concatenate %word, %zero, %count, dim = 1
      : (tensor<1x1xui32>, tensor<1x1xui32>, tensor<1x1xui32>) -> tensor<1x3xui32>
    return %w1, %t1, %report : tensor<3xf32>, tensor<i64>, tensor<1x3xui32>
  }
  func.func private @square(%x: tensor<f32>) -> tensor<f32> {
    %y = stablehlo.multiply %x, %x : tensor<f32>
    return %y : tensor<f32>
  }
}
"""

FORWARD = """
module @forward {
  func.func public @main(
      %w: tensor<3xf32>, %seed: tensor<2xui32>, %split: tensor<i32>, %index: tensor<i32>,
      %x: tensor<4x3xf32>
  ) -> tensor<4x3xf32> {
    %rows = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>
    %y = stablehlo.multiply %rows, %x : tensor<4x3xf32>
    return %y : tensor<4x3xf32>
  }
}
"""

WEIGHTS = {"param/w": np.array([1.0, 2.0, 3.0], np.float32)}
CONSTANTS = {"const/table": np.array([5.0, 6.0, 7.0], np.float32)}
X = np.arange(12, dtype=np.float32).reshape(4, 3)
IR_TEXT = 'module @Tiny version 1 pipeline "" left "" {\n}\n'


@dataclass(frozen=True)
class Program:
    """What emission hands over, by hand."""

    name: str
    artifact: bytes
    args: tuple[ArgEntry, ...]
    results: tuple[ResultEntry, ...]
    scalars: tuple[ScalarEntry, ...] = ()
    report: tuple[ReportWord, ...] = ()


def serialize(text: str, version: str = VERSION) -> bytes:
    """StableHLO text as a portable artifact."""
    return stablehlo.serialize_portable_artifact_str(text.encode(), version)


W = ArgEntry("param.p:packed.f32", "param", "p", "packed.f32", "f32", (3,))
SEED = ArgEntry("seed", "seed", "seed", None, "ui32", (2,))


def train_step(text: str = TRAIN) -> Program:
    return Program(
        "train_step",
        serialize(text),
        (
            W,
            ArgEntry("slot.t", "slot", "t", None, "i64", ()),
            ArgEntry("scalars", "scalars", "scalars", None, "f32", (1, 1)),
            SEED,
            ArgEntry("batch.x", "batch", "x", None, "f32", (1, 1, 4, 3)),
            ArgEntry("const.table", "const", "table", None, "f32", (3,)),
            ArgEntry("steps", "steps", "steps", None, "i32", ()),
        ),
        (
            ResultEntry("param.p:packed.f32", "param", "p", "packed.f32", "f32", (3,)),
            ResultEntry("slot.t", "slot", "t", None, "i64", ()),
            ResultEntry("report", "report", "report", None, "ui32", (1, 3)),
        ),
        (ScalarEntry("learning_rate", "f32", "optimizer", 0),),
        (ReportWord("loss", "f32", 0, 1), ReportWord("t", "i64", 1, 2)),
    )


def forward(text: str = FORWARD) -> Program:
    return Program(
        "forward.b4",
        serialize(text),
        (
            W,
            SEED,
            ArgEntry("split", "split", "split", None, "i32", ()),
            ArgEntry("index", "index", "index", None, "i32", ()),
            ArgEntry("batch.x", "batch", "x", None, "f32", (4, 3)),
        ),
        (ResultEntry("outputs.y", "outputs", "outputs", "y", "f32", (4, 3)),),
    )


def manifest() -> Manifest:
    leaf = LeafEntry("w", "f32", (3,), ("decay",), "packed.f32", 0)
    out = LeafEntry("y", "f32", (4, 3), (), "y", 0)
    return Manifest(
        name="Tiny",
        experiment=ExperimentEntry("Tiny", "host/exp.py"),
        numerics=NumericsEntry("default", "threefry2x32"),
        pipeline="differentiate,commit",
        fields={"width": FieldEntry("GraphConst", "int", 3, "Columns — all of them.", "default")},
        groups=(
            GroupEntry("default", "param", (leaf,), (BufferEntry("packed.f32", "f32", (3,)),)),
            GroupEntry("outputs.b4", "outputs", (out,), (BufferEntry("y", "f32", (4, 3)),)),
        ),
        slots=(SlotEntry("t", None, "i64", "0"),),
        functions={"forward": FunctionEntry("forward", "ab" * 32, "exp.py:3")},
        batch_schema={"train": BatchEntry({"x": TensorEntry("f32", (4, 3))}, 4, None)},
        requires=RequiresEntry(platforms=("cpu",)),
        producer={"nitroc": "0.1.0"},
    )


def golden(fingerprint: str, rtol: float = 1e-5) -> Golden:
    """What `forward` gives for `X`, as if recorded by the machine of `fingerprint`."""
    inputs = {
        "seed": np.zeros(2, np.uint32),
        "split": np.array(0, np.int32),
        "index": np.array(0, np.int32),
        "batch.x": X,
    }
    return Golden(inputs, {"outputs.y": WEIGHTS["param/w"] * X}, rtol, fingerprint)


def files(
    *,
    programs: tuple[Program, ...] | None = None,
    recording: Golden | None = None,
    **changes: Any,
) -> dict[str, bytes]:
    """The tiny bundle; `changes` replace keys of the manifest the compiler would hand over."""
    train, run = programs or (train_step(), forward())
    return assemble(
        replace(manifest(), **changes),
        [
            ProgramPart(train, "train_step", {"width": 4, "accum": 1, "capacity": 1}),
            ProgramPart(run, "forward", {"width": 4}, golden=recording),
        ],
        functions={"ab" * 32: serialize(FORWARD)},
        ir={"import": IR_TEXT, "train_step": IR_TEXT},
        weights=WEIGHTS,
        constants=CONSTANTS,
        host={"exp.py": b"class Tiny: ...\n"},
    )


def sealed(files: Mapping[str, bytes], edit: Any = None) -> dict[str, bytes]:
    """`files` with sizes, hashes and digest made right again after `edit(manifest as JSON)`.

    What a producer with a defect, or someone who knows the format, would write.
    """
    value = parse(files["manifest.json"])
    for name, data in files.items():
        if name in value["files"]:
            value["files"][name] |= {"size": len(data), "sha256": digest(data)}
    if edit is not None:
        edit(value)
    value["digest"] = identity(value)
    return {**files, "manifest.json": dump(value)}
