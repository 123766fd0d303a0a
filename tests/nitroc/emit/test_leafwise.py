"""Leaf by leaf, emitted: reductions inside a rule, words of vecs, a commit decided by marks."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emission import Case, Imported, assert_close, assert_same, emit_case, import_function
from leafwise import LARGE, LIMIT, RATIO, trusted, watched
from reference import first_slots, run_program
from regression import INPUTS, ROWS, TARGETS, Settings, batch, module

from nitro_dialect import parse
from nitro_dialect.ir import Leaf
from nitroc.emit.scope import Commits
from nitroc.passes import pipeline
from nitroc.rules import Rule

MODES = ("auto", "flat", "leaves")
GROUP = """  group default : param {
    a : f32[2,3]
    b : bf16[5]
    c : f32
    wide : f32[70,100]
    none : f32[0]
  }"""


def text(body: str) -> str:
    return f"""module @Small version 1 pipeline "" left "" {{
{GROUP}
  program @reduce.b1.r1 {{
    param %p : tree<default>
    slot %u : tree<default, f32> = zeros
    scalars %k : f32
{body}
  }}
}}
"""


def tree(dtype: Any = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"a": (2, 3), "b": (5,), "c": (), "wide": (70, 100), "none": (0,)}
    narrow = {"b": jnp.bfloat16}
    return {
        path: rng.normal(size=shape).astype(dtype or narrow.get(path, np.float32))
        for path, shape in shapes.items()
    }


def both(body: str, given: dict[str, Any], mode: str) -> dict[str, Any]:
    """What XLA gives, after interpreter and reference gave the same."""
    case = emit_case(text(body), program="reduce.b1.r1", mode=mode)
    run = case.run(given)
    assert_close(run, case.interpret(given), rtol=1e-4)
    wanted = run_program(parse(text(body)), "reduce.b1.r1", given, {})
    for name, value in wanted.report.items():
        assert_close(run["report"][name], value, name, rtol=1e-4)
    for name, value in wanted.assigned.items():
        assert_close(run[name], value, name, rtol=1e-4)
    return run


NORMALISED = """    %u.next, %n, %big = leaf.map %p, %u (%e : f32, %m : f32) {
      %s = mul %e, %e : f32
      %sum = leaf.fold %s {how = sum} : f32
      %size = leaf.size : f32
      %mean = div %sum, %size : f32
      %scaled = mul %e, %k : f32
      %r = sub %scaled, %mean : f32
      %some = add %r, %m : f32
      %most = leaf.fold %e {how = max} : f32
      yield %some, %size, %most
    } : tree<default, f32>, vec<default>, vec<default>
    %count = vec.count %n : i64
    %most.all = vec.fold %big {how = max} : f32
    %first = vec.first_nonzero %big : i64
    %word = vec.at %big, %first : f32
    %last = vec.at %n, 3 : f32
    assign %u from(%u.next)
    report {count = %count, most = %most.all, first = %first, word = %word, last = %last}"""


@pytest.mark.parametrize("mode", MODES)
def test_leaf_map(mode: str) -> None:
    p, u = tree(), tree(np.float32)
    made = both(NORMALISED, {"p": p, "u": u, "k": 0.5}, mode)
    for path, x in p.items():
        wide = x.astype(np.float32)
        mean = (wide * wide).mean() if x.size else 0
        assert_close(made["u"][path], wide * np.float32(0.5) - mean + u[path], path)
    words = made["report"]
    assert words["count"] == 6 + 5 + 1 + 7000
    assert (words["first"], words["last"]) == (0, 7000)
    assert words["word"] == p["a"].max()
    assert words["most"] == p["wide"].max()


@pytest.mark.parametrize("how", ["max", "min"])
def test_a_wide_maximum_of_a_leaf_keeps_nan(how: str) -> None:
    body = f"""    %v = leaf.map %p (%e : f32) {{
      %r = leaf.fold %e {{how = {how}}} : f32
      yield %r
    }} : vec<default>
    %all = vec.fold %v {{how = {how}}} : f32
    %bad = vec.first_nonfinite %v : i64
    report {{all = %all, bad = %bad}}"""
    p = tree()
    p["wide"][41, 7] = np.nan
    words = both(body, {"p": p, "u": tree(np.float32), "k": 0.0}, "auto")["report"]
    assert math.isnan(words["all"])
    assert words["bad"] == 3


@pytest.mark.parametrize(
    ("zeros", "first", "word"),
    [((), 0, 3.0), (("a",), 1, 1.5), (("a", "b", "c", "wide", "none"), -1, 0.0)],
)
def test_first_nonzero(zeros: tuple[str, ...], first: int, word: float) -> None:
    body = """    %v = leaf.map %p (%e : f32) {
      %r = leaf.fold %e {how = max} : f32
      %none = lt %r, -1e30 : i1
      %z = select %none, 0.0, %r : f32
      yield %z
    } : vec<default>
    %first = vec.first_nonzero %v : i64
    %word = vec.at %v, %first : f32
    report {first = %first, word = %word}"""
    p = {k: np.full_like(x, 1.5 if k == "b" else 3.0) for k, x in tree().items()}
    p |= {k: np.zeros_like(p[k]) for k in zeros}
    words = both(body, {"p": p, "u": tree(np.float32), "k": 0.0}, "auto")["report"]
    assert (words["first"], words["word"]) == (first, word)


def test_the_count_of_a_vec_is_exact() -> None:
    """Two words of 2^24 + 2: their f32 sum would be a multiple of 4."""
    body = """    %v = leaf.map %p (%e : f32) {
      yield 16777218.0
    } : vec<default>
    %n = vec.count %v : i64
    report {n = %n}"""
    words = both(body, {"p": tree(), "u": tree(np.float32), "k": 0.0}, "auto")["report"]
    assert words["n"] == 5 * (2**24 + 2)


LEAVES = (
    Leaf("bias", "f32", (7,)),
    Leaf("kernel", "f32", (INPUTS, TARGETS), frozenset({"decay"})),
    Leaf("scale", "bf16", (3,)),
    Leaf("scalar", "f32", ()),
    Leaf("wide", "f32", (90, 100), frozenset({"decay"})),
    Leaf("wider", "bf16", (90, 100)),
)
"""Packed and alone, wider than what XLA vectorises, narrow ones with masters."""


def train_step(rule: Rule, mode: str, guard: bool = True, **options: Any) -> Case:
    """A step whose gradient is `p * mean(x)`."""
    config = settings(rule, guard)
    done = pipeline.run(module(config, LEAVES), config.pipeline, roundtrip=True)
    return emit_case(done, [_gradient()], mode=mode, **options)


def settings(rule: Rule, guard: bool = True) -> Settings:
    return Settings(rule=rule, decay=0.1, guard=guard, stateful=False, metrics=False)


def _gradient() -> Imported:
    def call(*args: Any) -> Any:
        leaves, x = args[: len(LEAVES)], args[-2]
        return 1.0, 1.0, *(leaf * x.mean().astype(leaf.dtype) for leaf in leaves)

    array = jax.ShapeDtypeStruct
    dtypes = {"f32": jnp.float32, "bf16": jnp.bfloat16}
    found = import_function(
        "objective.grad",
        call,
        *(array(leaf.shape, dtypes[leaf.dtype]) for leaf in LEAVES),
        *(array((), jnp.float32), array((2,), jnp.uint32), array((2,), jnp.uint32)),
        array((), jnp.int32),
        *(array((ROWS, *rest), jnp.float32) for rest in ((), (INPUTS,), (TARGETS,))),
    )
    return Imported("0b", found.artifact)


def start(rule: Rule, case: Case, scale: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    params = {leaf.path: rng.normal(size=leaf.shape) for leaf in LEAVES}
    params = {
        leaf.path: (scale * params[leaf.path]).astype(
            jnp.bfloat16 if leaf.dtype == "bf16" else np.float32
        )
        for leaf in LEAVES
    }
    config = settings(rule)
    values = {
        **first_slots(case.module, "train_step", params),
        **{k: np.float32(v) for k, v in config.scalars.items()},
        **batch(config, rng),
        "p": params,
        "seed": np.array([0, 7], np.uint32),
    }
    values["x"] = np.ones_like(values["x"])
    return values


@pytest.mark.parametrize("rule", [trusted, watched])
def test_every_layout_gives_the_same_bits(rule: Rule) -> None:
    runs: list[dict[str, Any]] = []
    for mode in MODES:
        case = train_step(rule, mode)
        values = start(rule, case, 0.1)
        for _ in range(5):
            values |= case.run(values)
        runs.append({k: values[k] for k in ("p", "mu", "master", "t", "report")})
    assert runs[0]["t"] == 5
    assert_same(runs[1], runs[0])
    assert_same(runs[2], runs[0])


def test_a_step_is_what_the_ops_mean() -> None:
    case = train_step(trusted, "auto")
    values = start(trusted, case)
    wanted = [i.value.name for i in case.module.programs["train_step"].inputs]
    functions = {"objective.grad": lambda p, s, *_: (1.0, 1.0, p, s)}
    out = run_program(
        case.module, "train_step", {k: values.get(k, {}) for k in wanted}, functions
    )  # fmt: skip
    made = case.run(values)
    for name in ("p", "mu", "master"):
        narrow = name == "p"
        assert_close(made[name], out.assigned[name], name, 2e-2 if narrow else 2e-5)


@pytest.mark.parametrize("commits", list(Commits))
@pytest.mark.parametrize("mode", MODES)
def test_D04_a_step_that_a_rule_stops_changes_nothing(mode: str, commits: Commits) -> None:
    case = train_step(watched, mode, commits=commits)
    values = start(watched, case)
    values["p"]["scalar"] = np.float32(5.0)
    values["master"]["scalar"] = np.float32(5.0)
    beyond = [int((abs(x.astype(np.float32)) > LIMIT).sum()) for x in values["p"].values()]
    first = next(i for i, count in enumerate(beyond) if count)
    made = case.run(values)
    words = made["report"]
    assert not words["committed"]
    assert words[f"guard/{LARGE}"] == sum(beyond) > 1
    assert (words[f"guard/{LARGE}:first"], words[f"guard/{LARGE}:first_count"]) == (
        first, beyond[first],
    )  # fmt: skip
    assert words[f"mark/{RATIO}:n"] == len(LEAVES)
    for name in ("p", "mu", "master", "t", "attempt"):
        assert_same(made[name], values[name], name)
    assert made["halted"]


def test_the_region_of_the_commit_holds_the_update() -> None:
    """The update is made in the loop that runs when the step is ok; the counts before it."""
    lines = train_step(watched, "auto").emitted.text.splitlines()
    loops = [i for i, line in enumerate(lines) if "stablehlo.while" in line]
    assert len(loops) == 2  # scalars of the update, then its trees
    before, inside = "\n".join(lines[: loops[0]]), "\n".join(lines[loops[1] :])
    assert re.search(r"stablehlo.reduce.*9000xf32", before)
    assert "stablehlo.reduce" not in inside
    reducing = train_step(trusted, "auto").emitted.text.splitlines()
    last = max(i for i, line in enumerate(reducing) if "stablehlo.while" in line)
    assert any("9000xf32" in x for x in reducing[last:] if "stablehlo.reduce" in x)
