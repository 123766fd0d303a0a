"""What the importer makes of lowered functions."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import io_callback
from tracing import constants_of, run

from nitro_dialect.ir import Parameter
from nitro_dialect.types import TensorType
from nitro_runtime.dtypes import ir_dtype
from nitroc.errors import BuildError, ContractError
from nitroc.frontend.importer import ImportedFunction, TracedFunction, import_together
from nitroc.frontend.jax_internals import deserialize_portable, ir, make_ir_context

ROOT = str(Path(__file__).parent)
RNG = np.random.default_rng(1)


def traced(function: Callable[..., Any], *arguments: Any, name: str = "f") -> TracedFunction:
    specs = [jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype) for a in arguments]
    module = jax.jit(function, keep_unused=True).trace(*specs).lower().compiler_ir("stablehlo")
    params = tuple(
        Parameter(f"x{i}", TensorType(ir_dtype(np.asarray(a).dtype), np.shape(a)))
        for i, a in enumerate(arguments)
    )
    return TracedFunction(name, module, params, tuple((p.name,) for p in params), (), 0)


def imported(function: Callable[..., Any], *arguments: Any, **options: Any) -> ImportedFunction:
    return import_together([traced(function, *arguments)], ROOT, **options)[0]


def check_values(function: Callable[..., Any], *arguments: Any) -> ImportedFunction:
    made = imported(function, *arguments)
    given = {f"x{i}": a for i, a in enumerate(arguments)}
    found = run(made, given | constants_of(made))
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    for value, reference in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            value.astype(np.float32), np.asarray(reference, np.float32), rtol=2e-5, atol=2e-5
        )
    return made


def test_symbols_are_prefixed_private_and_digested() -> None:
    made = imported(lambda x: jax.nn.relu(x) + jax.nn.silu(x), np.ones(3, np.float32))
    assert re.findall(r"func\.func (\w+) @([\w.]+)", made.text)[0] == ("private", "f")
    assert all(
        kind == "private" and (name == "f" or name.startswith("f."))
        for kind, name in re.findall(r"func\.func (\w+) @([\w.]+)", made.text)
    )
    assert "loc(" not in made.text
    assert made.function.digest == hashlib.sha256(made.text.encode()).hexdigest()


def test_jax_cached_module_is_not_changed() -> None:
    def function(x: Any) -> Any:
        return jax.nn.relu(x) @ TABLE

    lowered = jax.jit(function).trace(jax.ShapeDtypeStruct((4, 64), jnp.float32)).lower()
    before = str(lowered.compiler_ir("stablehlo"))
    one = imported(function, np.ones((4, 64), np.float32))
    two = imported(function, np.ones((4, 64), np.float32))
    assert (one.text, one.serialized) == (two.text, two.serialized)
    assert str(lowered.compiler_ir("stablehlo")) == before


TABLE = RNG.normal(size=(64, 64)).astype(np.float32)
BIG = {
    "f32": TABLE,
    "bf16": TABLE.astype(ml_dtypes.bfloat16),
    "f16": TABLE.astype(np.float16),
    "i1": np.tile(TABLE > 0, (2, 1)),
    "i8": np.tile((TABLE * 3).astype(np.int8), (2, 1)),
    "ui32": (TABLE > 0).astype(np.uint32),
    "f8E4M3FN": np.tile(TABLE.astype(ml_dtypes.float8_e4m3fn), (2, 1)),
}


@pytest.mark.parametrize("dtype", BIG)
def test_large_constants_become_inputs_exactly(dtype: str) -> None:
    table = BIG[dtype]
    made = check_values(lambda x: jnp.asarray(table).astype(jnp.float32) * x, np.float32(2))
    (constant,) = made.constants.values()
    assert constant.dtype == table.dtype
    np.testing.assert_array_equal(constant.view(np.uint8), table.view(np.uint8))
    (name,) = made.constants
    assert made.function.params[0] == Parameter(f"const.{name}", TensorType(dtype, table.shape))
    assert len(made.text) < 2000


def test_constants_of_called_functions_and_loop_bodies_are_hoisted() -> None:
    other = RNG.normal(size=(64, 40)).astype(np.float32)

    @jax.jit
    def inner(x: Any) -> Any:
        return jax.lax.scan(lambda c, y: (c @ TABLE, None), x, None, length=2)[0] @ other

    @jax.jit
    def outer(x: Any) -> Any:
        return inner(x) + inner(2 * x)

    made = check_values(lambda x: (outer(x), inner(x), x @ TABLE), TABLE[:3])
    assert sorted(c.shape for c in made.constants.values()) == [(64, 40), (64, 64)]
    notes = sorted(made.notes)
    assert len(notes) == 2
    assert all(re.search(r"\(\d+ bytes\) .*used at test_importer\.py:\d+$", n) for n in notes)


def test_small_and_repeated_constants_stay() -> None:
    made = check_values(lambda x: x + jnp.zeros((64, 64)) + TABLE[:8, :8].sum(), np.float32(2))
    assert made.constants == {}


def test_constants_are_shared_by_functions_imported_together() -> None:
    x = np.ones((4, 64), np.float32)
    other = TABLE[:40] + 1
    one = traced(lambda x: x @ TABLE, x, name="one")
    two = traced(lambda x: (x @ TABLE) @ other.T, x, name="two")
    first, second = import_together([one, two], ROOT)
    assert first.function.params == second.function.params
    assert list(first.constants) == list(second.constants)
    assert len(first.constants) == 2
    found = run(first, {"x0": x} | constants_of(first))[0]
    np.testing.assert_allclose(found, x @ TABLE, rtol=1e-5)


def test_composites_become_calls() -> None:
    @functools.partial(jax.lax.composite, name="my.op")
    def composite(x: Any) -> Any:
        return jnp.sin(x) @ TABLE

    made = check_values(lambda x: composite(x) + 1, TABLE[:2])
    assert "composite" not in made.text
    assert "call @f." in made.text
    assert len(made.constants) == 1


LAYOUTS = [
    (("NHWC", "HWIO", "NHWC"), (2, 8, 9, 3), (3, 2, 3, 5)),
    (("NCHW", "OIHW", "NCHW"), (2, 3, 8, 9), (5, 3, 3, 2)),
    (("HWNC", "OHWI", "CHWN"), (8, 9, 2, 3), (5, 3, 2, 3)),
]


@pytest.mark.parametrize(("numbers", "x_shape", "w_shape"), LAYOUTS)
def test_convolutions_and_their_gradients_become_canonical(
    numbers: Any, x_shape: Any, w_shape: Any
) -> None:
    def loss(x: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            x, w, (1, 2), "SAME", rhs_dilation=(2, 1), dimension_numbers=numbers
        )
        return (jnp.sin(y) * jnp.arange(y.size).reshape(y.shape) / y.size).sum()

    x = RNG.normal(size=x_shape).astype(np.float32)
    w = RNG.normal(size=w_shape).astype(np.float32)
    made = check_values(jax.value_and_grad(loss, (0, 1)), x, w)
    found = re.findall(r"dim_numbers = (\S+),", made.text)
    assert set(found) == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]".replace(" ", "")} or all(
        "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]" in line
        for line in made.text.splitlines()
        if "stablehlo.convolution" in line
    )
    assert made.text.count("stablehlo.convolution") == 3


def test_grouped_and_1d_convolutions() -> None:
    x = RNG.normal(size=(2, 6, 12)).astype(np.float32)
    w = RNG.normal(size=(8, 3, 3)).astype(np.float32)

    def function(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (2,), "VALID", feature_group_count=2)

    check_values(function, x, w)


def debug(x: Any) -> Any:
    jax.debug.print("x {}", x)
    return x


def ordered_debug(x: Any) -> Any:
    jax.debug.print("x {}", x, ordered=True)
    return x


def pure(x: Any) -> Any:
    return jax.pure_callback(lambda x: x, x, x)


def inner_io(x: Any) -> Any:
    return jax.jit(lambda x: io_callback(lambda x: x, x, x))(x)


def ordered_io(x: Any) -> Any:
    return io_callback(lambda x: x, x, x, ordered=True)


CALLBACKS = {
    debug: "jax.debug.print",
    ordered_debug: "jax.debug.print",
    pure: "jax.pure_callback",
    inner_io: "jax.experimental.io_callback",
    ordered_io: "jax.experimental.io_callback",
}


@pytest.mark.parametrize("function", CALLBACKS)
def test_host_callbacks_are_refused_with_their_line(function: Callable[..., Any]) -> None:
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(ContractError, match=r"E-CONTRACT-00[12]") as raised:
        imported(function, np.float32(1))
    assert raised.value.where == f"test_importer.py:{line}"
    assert f"{CALLBACKS[function]} calls Python from inside @f" in raised.value.what


def test_what_a_version_lacks_is_a_named_error() -> None:
    with pytest.raises(BuildError, match=r"E-BUILD-040.*0\.9\.0"):
        imported(lambda x: jax.lax.top_k(x, 2)[0], np.ones(4, np.float32), version="0.9.0")


SCRIPT = """
import sys; sys.path[:0] = {paths!r}
import hashlib, numpy as np
from tracing import tracer
import exp
made = tracer(exp.Exp(), {{"img": np.zeros((4, 8), np.float32)}})
for f in (*made.objective(), made.forward(4), made.reduce(4, 3)):
    assert b"/" + exp.__file__.split("/")[1].encode() not in f.serialized, f.function.name
    print(f.function.digest, hashlib.sha256(f.serialized).hexdigest(), f.notes)
"""

EXPERIMENT = """
import jax, jax.numpy as jnp, numpy as np
from nitroc.frontend.experiment import Experiment
from layers import dense

TABLE = np.random.default_rng(0).normal(size=(8, 200)).astype(np.float32)

class Exp(Experiment):
    def build_model(self, key):
        return None, {"w": jnp.ones((200, 3)), "b": jnp.zeros(3)}, {}
    def forward(self, model, params, state, *, img, key):
        h = img @ TABLE + jax.random.normal(key, (200,))
        return {x: dense(h, params) for x in {"one", "two", "three"}}, state
    def loss(self, outputs):
        return outputs["one"].sum()
"""

LAYERS = """
def dense(x, params):
    return x @ params["w"] + params["b"]
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_F06_same_bytes_in_another_folder_and_process(tmp_path: Path, seed: str) -> None:
    made = [_built(tmp_path / "one", "0"), _built(tmp_path / "two" / "deeper", seed)]
    assert made[0] == made[1]
    assert "used at exp.py:12" in made[0]


def _built(folder: Path, hash_seed: str) -> str:
    folder.mkdir(parents=True)
    # the order of a set's strings follows the hash seed: outputs are sorted before they are traced
    text = EXPERIMENT.replace('{"one", "two", "three"}', 'sorted({"one", "two", "three"})')
    (folder / "exp.py").write_text(text)
    (folder / "layers.py").write_text(LAYERS)
    tests = str(Path(__file__).parents[2])
    script = SCRIPT.format(paths=[str(folder), tests])
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder)
    return done.stdout


def test_locations_name_user_lines_relative_to_the_root() -> None:
    def function(x: Any) -> Any:
        return helper(x) * 2

    made = imported(function, np.ones(3, np.float32))
    module = deserialize_portable(made.serialized, make_ir_context())
    text = module.operation.get_asm(enable_debug_info=True)
    files = set(re.findall(r'"([^"]*)":\d+:\d+', text))
    # no hook is called here, so what started the tests is not cut off: it may run from a string
    assert files - {"<string>"} == {"test_importer.py"}
    line = helper.__code__.co_firstlineno + 1
    assert f'"test_importer.py":{line}:' in text
    assert str(Path.home()) not in text


def helper(x: Any) -> Any:
    return jnp.exp(x)


def test_functions_the_serialiser_makes_are_prefixed_too() -> None:
    def function(x: Any) -> Any:
        return jax.lax.erf(x), jax.lax.top_k(x, 2)[0], jnp.sinh(x)

    made = check_values(function, np.linspace(-2, 2, 5, dtype=np.float32))
    module = deserialize_portable(made.serialized, make_ir_context())
    names = [op.attributes["sym_name"].value for op in module.body.operations]
    assert names[0] == "f"
    assert "f.chlo.erf.impl" in names
    assert all(name == "f" or name.startswith("f.") for name in names)


def test_tokens_are_refused() -> None:
    text = """
    func.func public @main(%x: tensor<f32>) -> tensor<f32> {
      %t = stablehlo.create_token : !stablehlo.token loc("send"("exp.py":3:1))
      return %x : tensor<f32>
    }
    """
    module = ir.Module.parse(text, make_ir_context())
    x = Parameter("x0", TensorType("f32"))
    given = TracedFunction("f", module, (x,), (("x0",),), (), 0)
    with pytest.raises(ContractError, match="E-CONTRACT-002") as raised:
        import_together([given], ROOT)
    assert raised.value.where == "exp.py:3"
