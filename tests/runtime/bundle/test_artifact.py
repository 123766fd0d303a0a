"""Reading artifacts: headers without MLIR, signatures, and every rule a program can break."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir
from tiny_bundle import FORWARD, TRAIN, serialize

from nitro_runtime.artifact import ArtifactError, Tensor, header_version, inspect
from nitroc.emit import mlir
from nitroc.frontend import jax_internals

IDENTITY = "func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{ {body} }}"


def _main(body: str, rest: str = "") -> bytes:
    return serialize("module @m { " + IDENTITY.format(body=body) + rest + " }", "1.13.7")


def test_header() -> None:
    assert header_version(serialize(FORWARD, "1.13.7")) == (1, 13, 7)
    assert header_version(serialize(FORWARD, "1.0.0")) == (1, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ML\xefR",
        b"ML\xefR\x0dStableHLO_v1.13.7",
        b"ML\xefR\x0dStableHLO_v1.13\0",
        b"ML\xefR\x0dMLIR20.0\0",
        b"ML\xefR\x0d" + b"x" * 100 + b"\0",
        b"#!/bin/sh\n",
    ],
)
def test_no_header(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        header_version(data)


def test_signature_and_donation() -> None:
    found = inspect(serialize(TRAIN))
    assert found.problems == []
    assert found.donate == ((0, 0), (1, 1))
    assert found.args[1:5] == (
        Tensor("i64", ()),
        Tensor("f32", (1, 1)),
        Tensor("ui32", (2,)),
        Tensor("f32", (1, 1, 4, 3)),
    )
    assert found.results[2] == Tensor("ui32", (1, 3))


def test_what_jax_exports_is_understood() -> None:
    function = jax.jit(lambda x: (jnp.linalg.cholesky(x), jnp.sum(x) > 0, x[0].astype("bfloat16")))
    exported = jax.export.export(function)(jax.ShapeDtypeStruct((3, 3), jnp.float32))
    found = inspect(exported.mlir_module_serialized)
    assert found.problems == []
    assert found.custom_calls == ("lapack_spotrf_ffi",)
    assert found.results == (Tensor("f32", (3, 3)), Tensor("i1", ()), Tensor("bf16", (3,)))


T = "tensor<2xf32>"
CALL = f"%y = stablehlo.custom_call @{{target}}(%x) : ({T}) -> {T} return %y : {T}"


def _caller(name: str, callee: str) -> str:
    body = f"%y = func.call @{callee}(%x) : ({T}) -> {T} return %y : {T}"
    return f" func.func private @{name}(%x: {T}) -> {T} {{ {body} }}"


@pytest.mark.parametrize(
    ("artifact", "said"),
    [
        (_main(CALL.format(target="xla_ffi_python_cpu_callback")), "calls back into Python"),
        (_main(CALL.format(target="rm_rf")), "rm_rf is not on the list"),
        (
            _main(
                "%t = stablehlo.create_token : !stablehlo.token "
                '%o = "stablehlo.outfeed"(%x, %t) {outfeed_config = ""} '
                ": (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token "
                "return %x : tensor<2xf32>"
            ),
            "outfeed in @main talks to the host",
        ),
        (
            _main(
                f"%y = func.call @f(%x) : ({T}) -> {T} return %y : {T}",
                _caller("f", "g") + _caller("g", "f"),
            ),
            "in a circle: f, g, main",
        ),
        (
            _main(
                "return %x : tensor<2xf32>",
                " func.func public @other(%x: tensor<f32>) -> tensor<f32> "
                "{ return %x : tensor<f32> }",
            ),
            "one public function main, found .*other",
        ),
        (
            serialize(
                "module @m { func.func public @run(%x: tensor<f32>) -> tensor<f32> "
                "{ return %x : tensor<f32> } }"
            ),
            "found .*run",
        ),
        (_main("return %x : tensor<2xf32>", " func.func private @f()"), "@f is declared"),
        (
            serialize(
                "module @m { func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> "
                "{ return %x : tensor<?xf32> } }"
            ),
            "argument 0 of main is tensor<\\?xf32>",
        ),
        (
            _main(
                "%y = stablehlo.convert %x : (tensor<2xf32>) -> tensor<?xf32> "
                "return %x : tensor<2xf32>"
            ),
            "convert in @main has the type tensor<\\?xf32>",
        ),
        (
            serialize(
                "module @m { func.func public @main(%x: !stablehlo.token) -> !stablehlo.token "
                "{ return %x : !stablehlo.token } }"
            ),
            "argument 0 of main is !stablehlo.token",
        ),
        (
            serialize(
                "module @m { func.func public @main(%x: tensor<f32> {jax.buffer_donor = true}) "
                "-> tensor<f32> { return %x : tensor<f32> } }"
            ),
            "donated to no result",
        ),
        (b"ML\xefRnonsense", "bytecode"),
    ],
)
def test_broken_rules(artifact: bytes, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    problems = inspect(artifact).problems
    assert any(re.search(said, problem) for problem in problems), problems
    assert capfd.readouterr().err == ""


def test_a_host_callback_from_jax_is_refused() -> None:
    def shout(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x

    lowered = jax.jit(shout).lower(jax.ShapeDtypeStruct((2,), jnp.float32))
    bytecode = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(bytecode)
    with jax_internals.make_ir_context(), ir.Location.unknown():
        artifact = mlir.serialize(ir.Module.parse(bytecode.getvalue()), "1.13.7")
    (problem,) = inspect(artifact).problems
    assert problem.endswith("calls back into Python on the host")


def test_deep_nesting_is_walked_without_recursion() -> None:
    depth = 400
    body = "%c = stablehlo.constant dense<0> : tensor<i32> "
    opening = '%r{i} = "stablehlo.case"(%c) ({{ '
    body += "".join(opening.format(i=i) for i in range(depth))
    body += "stablehlo.return %x : tensor<2xf32> "
    for i in range(depth - 1, -1, -1):
        body += "}) : (tensor<i32>) -> tensor<2xf32> "
        body += f"{'stablehlo.return' if i else 'return'} %r{i} : tensor<2xf32> "
    assert inspect(_main(body)).problems == []


def test_reading_needs_no_jax() -> None:
    code = "import sys, nitro_runtime.bundle; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
