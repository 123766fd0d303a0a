# ruff: noqa: E501  (the long lines are lines of IR)
"""What surrounds the rules: functions, artifacts, versions, locations, evaluation programs."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emission import Case, Imported, assert_close, assert_same, emit_case, import_function

from nitroc.emit import program_text, resolve_compat
from nitroc.errors import BuildError

HERE = Path(__file__).parent
array = jax.ShapeDtypeStruct


# Evaluation programs


def _forward(a: Any, b: Any, k: Any, table: Any, proto: Any, tau: Any, on: Any, *rest: Any) -> Any:
    *_, x = rest
    y = jax.nn.relu(x @ b + a) * tau + table[0] + proto.sum()
    return jnp.where(on, y, 0), (y.sum(-1) + k).astype(jnp.bfloat16)


@functools.cache
def forward(table: tuple[int, ...] = (1, 3)) -> Imported:
    f32, i32, u32 = jnp.float32, jnp.int32, jnp.uint32
    return import_function(
        "forward.b4",
        _forward,
        *(array((3,), f32), array((2, 3), f32), array((), i32), array(table, f32)),
        *(array((2, 2), f32), array((), f32), array((), jnp.bool_)),
        *(array((2,), u32), array((), i32), array((), i32), array((4, 2), f32)),
    )


def forward_text(digest: str) -> str:
    return f"""module @Eval version 1 pipeline "" left "" {{
  device tau : f32 = 1.5
  device on : i1 = true
  device proto : f32[2,2]
  group default : param {{
    a : f32[3] {{}}
    b : f32[2,3] {{decay}}
  }}
  group state : state {{
    k : i32 {{}}
  }}
  group outputs.b4 : outputs {{
    logits : f32[4,3] {{}}
    score : bf16[4] {{}}
  }}
  func @forward.b4 (params : tree<default>, state : tree<state>, const.table : f32[1,3], proto : f32[2,2], tau : f32, on : i1, seed : seed, split : i32, index : i32, x : f32[4,2]) -> (outputs : tree<outputs.b4>) from "{digest}"
  program @forward.b4 {{
    param %p : tree<default>
    state %s : tree<state>
    const %table : f32[1,3]
    device %proto : f32[2,2]
    scalars %tau : f32
    scalars %on : i1
    seed %seed : seed
    split %split : i32
    index %index : i32
    batch %x : f32[4,2]
    %out = call @forward.b4 %p, %s, %table, %proto, %tau, %on, %seed, %split, %index, %x : tree<outputs.b4>
    output {{outputs = %out}}
  }}
}}
"""


@pytest.mark.parametrize("mode", ["auto", "flat", "leaves"])
def test_forward_takes_constants_and_device_values(mode: str) -> None:
    function = forward()
    case = emit_case(forward_text(function.digest), [function], program="forward.b4", mode=mode)
    rng = np.random.default_rng(0)
    given = {
        "p": {"a": rng.normal(size=3), "b": rng.normal(size=(2, 3))},
        "s": {"k": np.int32(3)}, "table": rng.normal(size=(1, 3)),
        "proto": rng.normal(size=(2, 2)), "tau": 1.5, "on": True, "seed": [0, 1], "split": 0,
        "index": 2, "x": rng.normal(size=(4, 2)),
    }  # fmt: skip
    made = case.run(given)
    y = np.maximum(given["x"] @ given["p"]["b"] + given["p"]["a"], 0) * 1.5
    y = y + given["table"][0] + given["proto"].sum()
    assert_close(made["outputs"]["logits"], y)
    assert_close(made["outputs"]["score"], y.sum(-1) + 3, rtol=1e-2)
    assert_same(case.interpret(given)["outputs"]["score"].dtype, made["outputs"]["score"].dtype)
    given["on"] = False
    assert not case.run(given)["outputs"]["logits"].any()
    assert [(r.name, r.role, r.buffer) for r in case.emitted.results] == [
        ("outputs.logits", "outputs", "logits"),
        ("outputs.score", "outputs", "score"),
    ]
    names = [a.name for a in case.emitted.args if a.role not in ("param", "state")]
    assert names == [
        "const.table", "device.proto", "scalars", "seed", "split", "index", "batch.x",
    ]  # fmt: skip
    assert case.emitted.donate == ()
    assert "tf.aliasing_output" not in case.emitted.text


@pytest.mark.parametrize("mode", ["auto", "leaves"])
def test_init_gives_the_buffers_of_params_and_state(mode: str) -> None:
    def run(seed: Any) -> Any:
        word = seed[1].astype(jnp.float32)
        return jnp.ones(3) * word, jnp.ones((2, 3)) + word, jnp.int32(7)

    function = import_function("init", run, array((2,), jnp.uint32))
    text = f"""module @Init version 1 pipeline "" left "" {{
  group default : param {{
    a : f32[3] {{}}
    b : f32[2,3] {{}}
  }}
  group state : state {{
    k : i32 {{}}
  }}
  func @init (seed : seed) -> (params : tree<default>, state : tree<state>) from "{function.digest}"
  program @init {{
    seed %seed : seed
    %p, %s = call @init %seed : tree<default>, tree<state>
    output {{param = %p, state = %s}}
  }}
}}
"""
    case = emit_case(text, [function], program="init", mode=mode)
    made = case.run({"seed": [0, 4]})
    assert_same(made["param"]["a"], np.full(3, 4, np.float32))
    assert_same(made["param"]["b"], np.full((2, 3), 5, np.float32))
    assert_same(made["state"]["k"], np.array(7, np.int32))
    buffers = {"auto": ["packed.f32", "packed.i32"], "leaves": ["a", "b", "k"]}[mode]
    assert [r.buffer for r in case.emitted.results] == buffers
    assert [r.role for r in case.emitted.results][-1] == "state"


def test_a_name_that_gave_way_to_a_device_value_is_its_own_outside() -> None:
    text = """module @Clash version 1 pipeline "" left "" {
  program @reduce.b1.r1 {
    device %x : f32[2]
    batch %x.batch : f32[2]
    batch %y.batch : f32[2]
    output {a = %x, b = %x.batch, c = %y.batch}
  }
}
"""
    case = emit_case(text, program="reduce.b1.r1")
    names = [(a.name, a.value) for a in case.emitted.args]
    assert names == [
        ("device.x", "x"),
        ("batch.x", "x.batch"),
        ("batch.y.batch", "y.batch"),
    ]


# Linking


def test_a_missing_function_is_named() -> None:
    function = forward()
    text = forward_text(function.digest[:-1] + "?")
    with pytest.raises(BuildError, match=rf"E-BUILD-022.*@forward.b4.*\n.*'{function.digest}'"):
        emit_case(text, [function], program="forward.b4")


def test_a_function_of_another_signature_is_refused() -> None:
    function = forward((2, 3))
    with pytest.raises(BuildError, match=r"E-BUILD-022: @forward.b4: expected arguments .*1x3xf32"):
        emit_case(forward_text(function.digest), [function], program="forward.b4")


def test_helpers_of_a_function_come_along_private() -> None:
    function = forward()
    case = emit_case(forward_text(function.digest), [function], program="forward.b4")
    found = re.findall(r"func\.func (\w+) @(\S+?)\(", case.emitted.text)
    assert ("public", "main") in found
    assert ("private", "forward.b4") in found
    assert any(name.startswith("forward.b4.") for _, name in found)
    assert [kind for kind, _ in found].count("public") == 1


# Versions


def test_compat_resolves_to_versions() -> None:
    ordered = [tuple(map(int, resolve_compat(t).split("."))) for t in ("max", None, "current")]
    assert ordered == sorted(ordered)
    assert ordered[0] < ordered[1] < ordered[2]
    assert resolve_compat("1.0.0") == "1.0.0"


@pytest.mark.parametrize("text", ["newest", "1.0", "99.0.0", "0.0.1", "1.0.0-dev"])
def test_an_impossible_version_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="E-BUILD-021"):
        resolve_compat(text)


def test_an_op_too_new_for_the_version_is_refused_with_the_reason() -> None:
    def run(x: Any) -> Any:
        return jax.lax.top_k(x, 2)[0]

    function = import_function("forward.b1", run, array((4,), jnp.float32))
    text = f"""module @Top version 1 pipeline "" left "" {{
  func @forward.b1 (x : f32[4]) -> (y : f32[2]) from "{function.digest}"
  program @forward.b1 {{
    batch %x : f32[4]
    %y = call @forward.b1 %x : f32[2]
    output {{y = %y}}
  }}
}}
"""
    assert emit_case(text, [function], program="forward.b1").run({"x": [1, 4, 2, 3]})["y"][0] == 4
    with pytest.raises(BuildError, match=r"E-BUILD-020: program @forward.b1 .* 0\.9\.0"):
        emit_case(text, [function], program="forward.b1", version=resolve_compat("max"))


# Text, locations, determinism

TINY = """module @Tiny version 1 pipeline "" left "" {
  group default : param {
    b : f32[3] {}
    w : f32[2,3] {decay}
  }
  program @train_step {
    param %p : tree<default>
    slot %attempt : i64 = 0
    scalars %learning_rate : f32
    scalars %scale : i32
    batch %g : f32[1]
    %step = add %attempt, 1 : i64
    %rate = convert %scale : f32
    %p.next = map %p {where = decay} (%x : f32) {
      %x.rate = mul %x, %rate : f32
      %x.step = mul %learning_rate, %x.rate : f32
      %x.next = sub %x, %x.step : f32
      yield %x.next
    } : tree<default> loc("exp.py:41:5")
    assign %p, %attempt from(%p.next, %step)
    report {step = %step, rate = %rate}
  }
}
"""


def tiny(**options: Any) -> Case:
    return emit_case(TINY, **options)


def test_the_text_of_a_tiny_program() -> None:
    assert tiny().emitted.text == (HERE / "tiny.mlir").read_text()


def test_locations_name_values_arguments_and_user_lines() -> None:
    emitted = tiny().emitted
    located = program_text(emitted.artifact, locations=True)
    assert 'loc("param.p:packed.f32.decay")' in located
    assert re.search(r'loc\("x.next"\(#loc\d+\)\)', located)
    assert '"exp.py":41:5' in located
    assert program_text(emitted.artifact, locations=False) == emitted.text
    assert "loc(" not in emitted.text


def test_stripping_locations_changes_nothing_else() -> None:
    kept, stripped = tiny().emitted, tiny(strip_locations=True).emitted
    assert stripped.text == kept.text
    assert b"exp.py" in kept.artifact
    assert b"exp.py" not in stripped.artifact
    assert b"learning_rate" not in stripped.artifact


SCRIPT = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from test_program import forward_text, forward, tiny
from emission import emit_case
function = forward()
print(hashlib.sha256(tiny().emitted.artifact).hexdigest())
case = emit_case(forward_text(function.digest), [function], program="forward.b4")
print(hashlib.sha256(case.emitted.artifact).hexdigest())
"""


def test_two_processes_emit_the_same_bytes() -> None:
    made = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(HERE), str(HERE.parents[1])],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1]
    assert len(set(made[0].split())) == 2
