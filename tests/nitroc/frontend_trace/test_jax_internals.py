"""One contract per private name of jax: what the front end relies on."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from nitroc.frontend import jax_internals
from nitroc.frontend.jax_internals import ir, make_ir_context, own_copy

X = jax.ShapeDtypeStruct((4,), jnp.float32)


def lowered(function: Any, *specs: Any) -> Any:
    return jax.jit(function).trace(*specs).lower().compiler_ir("stablehlo")


def test_dce_jaxpr_drops_dead_inputs_and_keeps_those_asked_for() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return jnp.sin(a) + 0 * c.shape[0], jnp.cos(b).sum() * 0 + 1

    closed = jax.jit(lambda a, b, c: function(a, b, c)[0]).trace(X, X, X).jaxpr
    smaller, used = jax_internals.drop_dead(closed, [False, False, False])
    assert used == (True, False, False)
    assert smaller.eqns[0].primitive.name == "sin"
    assert jax_internals.drop_dead(closed, [False, False, True])[1] == (True, False, True)


def test_user_frames_are_innermost_first_without_jax() -> None:
    def inner(x: Any) -> Any:
        return jax.nn.softmax(x)

    closed = jax.jit(lambda x: inner(x)).trace(X).jaxpr
    frames = list(jax_internals.equation_frames(closed.eqns[-1]))
    assert frames[0] == (__file__, inner.__code__.co_firstlineno + 1)
    assert not any("/jax/_src/" in file for file, _ in frames)


def test_traceback_in_locations_limit_keeps_every_frame() -> None:
    def deep(n: int, x: Any) -> Any:
        return deep(n - 1, x) if n else jnp.sin(x)

    def depth() -> int:
        module = lowered(lambda x: deep(120, x), X)
        return len(
            re.findall(
                "callsite", str(module.body.operations[0].body.blocks[0].operations[0].location)
            )
        )

    default = depth()
    jax.clear_caches()
    with jax_internals.every_frame_in_locations():
        assert depth() > 120 > default


def test_own_copy_leaves_what_it_copies() -> None:
    module = lowered(jnp.sin, X)
    copy = own_copy(module)
    before = str(module)
    copy.body.operations[0].operation.erase()
    assert str(module) == before


def test_serialize_portable_artifact_writes_the_version_and_legalises_chlo() -> None:
    artifact = jax_internals.portable_artifact(own_copy(lowered(jax.lax.erf, X)), "1.13.7")
    assert artifact.startswith(b"ML\xefR")
    assert b"StableHLO_v1.13.7\0" in artifact[:64]
    module = jax_internals.deserialize_portable(artifact, make_ir_context())
    assert "chlo.erf " not in str(module)
    with pytest.raises(JaxRuntimeError, match="failed to legalize"):
        jax_internals.portable_artifact(own_copy(lowered(jax.lax.erf, X)), "0.9.0")


def test_default_version_is_between_the_minimum_and_the_current() -> None:
    def numbers(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")))

    hlo = jax_internals.hlo
    version = numbers(jax_internals.default_version())
    assert numbers(hlo.get_minimum_version()) <= version <= numbers(hlo.get_current_version())


def test_make_ir_context_knows_the_dialects() -> None:
    ir.Module.parse(
        "func.func @f() { %0 = stablehlo.constant dense<1> : tensor<i32> return }",
        make_ir_context(),
    )


def test_locations_and_block_arguments_can_be_rewritten() -> None:
    module = own_copy(lowered(jnp.sin, X))
    with module.context:
        function = module.body.operations[0].operation
        function.regions[0].blocks[0].arguments[0].set_location(ir.Location.name("x"))
        function.location = ir.Location.file("exp.py", 1, 2, 3, 4)
        assert isinstance(function.location, ir.FileLineColLoc)
        text = module.operation.get_asm(enable_debug_info=True)
    assert '"exp.py":1:2 to 3:4' in text
    assert 'loc("x")' in text


def test_passes_the_importer_runs_are_registered() -> None:
    module = own_copy(lowered(jnp.sin, X))
    jax_internals.hlo.register_stablehlo_passes()
    jax_internals.hlo.register_stablehlo_passes()
    with module.context:
        jax_internals.passmanager.PassManager.parse(
            "builtin.module(func.func(stablehlo-legalize-composite-to-call))"
        ).run(module.operation)


def test_jaxpr_as_fun_computes_what_was_traced() -> None:
    closed = jax.jit(lambda x: jnp.sin(x) * 2).trace(X).jaxpr
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(jax_internals.jaxpr_as_fun(closed)(x)[0], np.sin(x) * 2, rtol=1e-6)
    literal = next(v for e in closed.eqns for v in e.invars if hasattr(v, "val"))
    assert isinstance(literal, jax_internals.JaxprLiteral)
