"""The face of MLIR, and the private names of jax it rests on."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nitroc.emit import mlir
from nitroc.frontend import jax_internals


def built(text: str) -> bytes:
    context = jax_internals.make_ir_context()
    with context:
        module = jax_internals.ir.Module.parse(text)
        return mlir.serialize(module, mlir.versions()["12 weeks"])


def identity(kind: str) -> bytes:
    return built(f"func.func @main(%x: {kind}) -> {kind} {{ return %x : {kind} }}")


def test_a_context_of_jax_knows_the_dialects_of_a_program() -> None:
    context = jax_internals.make_ir_context()
    for name in ("func", "stablehlo", "chlo", "sdy", "mhlo"):
        assert context.is_registered_operation(f"{name}.{_SOME_OP[name]}"), name


_SOME_OP = {"func": "func", "stablehlo": "add", "chlo": "erf", "sdy": "mesh", "mhlo": "add"}


def test_a_portable_artifact_reads_back_into_a_given_context() -> None:
    artifact = identity("tensor<3xf32>")
    context = jax_internals.make_ir_context()
    module = jax_internals.deserialize_portable(artifact, context)
    assert module.context == context
    assert "tensor<3xf32>" in str(module)
    assert mlir.text(artifact, locations=False) == str(module)


@pytest.mark.parametrize(
    ("kind", "x"),
    [
        ("tensor<2x2xf32>", np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32)),
        ("tensor<2xbf16>", np.array([1.5, -3], ml_dtypes.bfloat16)),
        ("tensor<2xf16>", np.array([1.5, -3], np.float16)),
        ("tensor<2xf8E4M3FN>", np.array([1.5, -3], ml_dtypes.float8_e4m3fn)),
        ("tensor<i64>", np.array(2**40, np.int64)),
        ("tensor<2xui32>", np.array([0, 2**32 - 1], np.uint32)),
        ("tensor<3xi1>", np.array([True, False, True])),
        ("tensor<1xi1>", np.array([True])),
        ("tensor<0x3xf32>", np.zeros((0, 3), np.float32)),
        ("tensor<0xbf16>", np.zeros(0, ml_dtypes.bfloat16)),
    ],
    ids=str,
)
def test_the_interpreter_keeps_every_bit(kind: str, x: np.ndarray) -> None:
    (made,) = mlir.evaluate(identity(kind), [x])
    assert made.dtype == x.dtype
    assert made.shape == x.shape
    assert made.tobytes() == x.tobytes()


def test_an_invalid_module_says_why() -> None:
    builder = mlir.ModuleBuilder("train_step")
    argument = mlir.Argument("x", "f32", (2,))

    def body(tensors: list[mlir.Tensor]) -> list[mlir.Tensor]:
        return mlir.call("nowhere", tensors, [("f32", (2,))])

    assert builder.main([argument], body) == [("f32", (2,))]
    with pytest.raises(mlir.EmissionFailed, match="nowhere"):
        builder.verify()


def test_types_are_spelled_as_mlir_prints_them() -> None:
    builder = mlir.ModuleBuilder("m")
    kinds = [(d, (2, 3)) for d in ("f32", "bf16", "f8E5M2", "ui32", "i1", "i64", "c64")]
    with builder.context, jax_internals.ir.Location.unknown():
        for dtype, shape in [*kinds, ("f32", ())]:
            assert mlir.spell(dtype, shape) == str(mlir.tensor_type(dtype, shape))
