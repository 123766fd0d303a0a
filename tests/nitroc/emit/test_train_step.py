# ruff: noqa: E501  (the long lines are lines of IR)
"""A whole train step: numpy, StableHLO's reference interpreter and XLA agree."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from emission import Case, Imported, Values, assert_close, assert_same, emit_case, import_function

from nitroc.emit.scope import Commits

BATCH, INPUTS, WIDTH, CLASSES = 8, 5, 7, 3
SHAPES = {
    "dense_0.bias": (WIDTH,),
    "dense_0.kernel": (INPUTS, WIDTH),
    "dense_1.bias": (CLASSES,),
    "dense_1.kernel": (WIDTH, CLASSES),
}
MODES = ("auto", "flat", "leaves")
SEED = np.array([3, 4], np.uint32)


def loss_sum(p: dict[str, Any], count: Any, smoothing: Any, micro: Any, x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ p["dense_0.kernel"] + p["dense_0.bias"])
    logits = h @ p["dense_1.kernel"] + p["dense_1.bias"]
    target = jax.nn.one_hot(y, CLASSES) * (1 - smoothing) + smoothing / CLASSES
    each = -(target * jax.nn.log_softmax(logits)).sum(-1)
    weights = 1.0 + (y == 0)
    return (each * weights).sum().astype(jnp.float32), (weights.sum(), count + 1 + micro)


def _gradient(*flat: Any) -> Any:
    leaves, (mean, count, smoothing, _, _, micro, x, y) = flat[:4], flat[4:]
    p = dict(zip(SHAPES, leaves, strict=True))
    (loss, (weight, count)), g = jax.value_and_grad(loss_sum, has_aux=True)(
        p, count, smoothing, micro, x, y
    )
    mean = 0.5 * mean + 0.5 * x.mean(0)
    return loss, weight, *(g[k] for k in SHAPES), mean, count


@functools.cache
def imported(dtype: str = "float32") -> Imported:
    array = jax.ShapeDtypeStruct
    return import_function(
        "objective.grad",
        _gradient,
        *(array(s, dtype) for s in SHAPES.values()),
        array((INPUTS,), jnp.float32),
        array((), jnp.int32),
        array((), jnp.float32),
        array((2,), jnp.uint32),
        array((2,), jnp.uint32),
        array((), jnp.int32),
        array((BATCH, INPUTS), jnp.float32),
        array((BATCH,), jnp.int32),
    )


def step_text(
    digest: str, *, accum: int = 1, clip: float = 0.0, decay: bool = False, dtype: str = "f32"
) -> str:
    """The module after `expand`: Adam, with what is asked for around it."""
    master = dtype != "f32"
    held = "master" if master else "p"
    tree = "tree<default, f32>"
    scalars = ["learning_rate", "b1", "b2", *(["weight_decay"] if decay else []), "smoothing"]
    rows = "\n".join(
        f"    {path} : {dtype}[{','.join(map(str, shape))}] {{{'decay' if len(shape) > 1 else ''}}}"
        for path, shape in SHAPES.items()
    )
    call = (
        "call @objective.grad %p, {s}, %smoothing, %seed, %step.words, {i}, {x}, {y} "
        ": f32, f32, tree<default>, tree<state>"
    )
    if accum == 1:
        loop = f"""
    %x.0 = tensor.at %x {{index = 0}} : f32[{BATCH},{INPUTS}]
    %y.0 = tensor.at %y {{index = 0}} : i32[{BATCH}]
    %loss, %weight, %g, %s.new = {call.format(s="%s", i=0, x="%x.0", y="%y.0")}"""
    else:
        loop = f"""
    %loss, %weight, %g, %s.new = accum {{how = [sum, sum, sum], steps = {accum}}} over(%x, %y) carry(%s) (%i : i32, %x.i : f32[{BATCH},{INPUTS}], %y.i : i32[{BATCH}], %s.i : tree<state>) {{
      %l, %w, %g.i, %s.o = {call.format(s="%s.i", i="%i", x="%x.i", y="%y.i")}
      yield %l, %w, %g.i, %s.o
    }} : f32, f32, {tree}, tree<state>"""
    clipping = f"""
    %over = gt %g.norm, {clip} : i1
    %ratio = div {clip}, %g.norm : f32
    %scale = select %over, %ratio, 1.0 : f32
    %g.clip = map %g.mean {{where = ""}} (%e.g : f32) {{
      %e.s = mul %e.g, %scale : f32
      yield %e.s
    }} : {tree}"""
    decaying = f"""
      %u.decay = map %u, %{held} {{where = decay}} (%d.u : f32, %d.p : f32) {{
        %d.r = mul %weight_decay, %d.p : f32
        %d.s = add %d.u, %d.r : f32
        yield %d.s
      }} : {tree}"""
    cast = """
      %p.next = map %master.next {where = ""} (%c.x : f32) {
        yield %c.x
      } : tree<default>"""
    keep = ["p", *(["master"] if master else []), "mu", "nu", "t", "s"]
    kinds = ["tree<default>", *([tree] if master else []), tree, tree, "i64", "tree<state>"]
    new = ["s.new" if k == "s" else f"{k}.next" for k in keep]
    return f"""module @Tiny version 1 pipeline "" left "" {{
  device smoothing : f32 = 0.05
  group default : param {{
{rows}
  }}
  group state : state {{
    mean : f32[{INPUTS}] {{}}
    count : i32 {{}}
  }}
  func @objective.grad (params : tree<default>, state : tree<state>, smoothing : f32, seed : seed, step : ui32[2], micro : i32, x : f32[{BATCH},{INPUTS}], y : i32[{BATCH}]) -> (loss : f32, weight : f32, grad : tree<default>, state : tree<state>) from "{digest}"
  program @train_step {{
    param %p : tree<default>
{f"    slot %master : {tree} = param" if master else ""}
    slot %mu : {tree} = zeros
    slot %nu : {tree} = zeros
    slot %t : i64 = 0
    slot %attempt : i64 = 0
    slot %halted : i1 = false
    state %s : tree<state>
    scalars {", ".join("%" + s for s in scalars)} : f32
    seed %seed : seed
    batch %x : f32[{accum},{BATCH},{INPUTS}]
    batch %y : i32[{accum},{BATCH}]
    %step = add %attempt, 1 : i64
    %step.words = words %step : ui32[2]{loop}
    %loss.mean = div %loss, %weight : f32
    %g.mean = map %g {{where = ""}} (%m.g : f32) {{
      %m.d = div %m.g, %weight : f32
      yield %m.d
    }} : {tree}
    %g.sq = fold.leaf %g.mean {{how = sum}} (%q.g : f32) {{
      %q.s = mul %q.g, %q.g : f32
      yield %q.s
    }} : vec<default>
    %g.total = vec.sum %g.sq : f32
    %g.norm = sqrt %g.total : f32
    %first = vec.first_nonfinite %g.sq : i64{clipping if clip else ""}
    %ok.loss = is_finite %loss.mean : i1
    %ok.norm = is_finite %g.norm : i1
    %running = not %halted : i1
    %ok.both = and %ok.loss, %ok.norm : i1
    %ok = and %ok.both, %running : i1
    %failed = not %ok : i1
    %halted.next = or %halted, %failed : i1
    {", ".join(f"%{k}.out" for k in keep)} = commit %ok keep({", ".join("%" + k for k in keep)}) {{
      %t.next = add %t, 1 : i64
      %t.f = convert %t.next : f32
      %b1.t = pow %b1, %t.f : f32
      %c1 = sub 1.0, %b1.t : f32
      %b2.t = pow %b2, %t.f : f32
      %c2 = sub 1.0, %b2.t : f32
      %b1.rest = sub 1.0, %b1 : f32
      %b2.rest = sub 1.0, %b2 : f32
      %u, %mu.next, %nu.next = map %{"g.clip" if clip else "g.mean"}, %mu, %nu {{where = ""}} (%e : f32, %em : f32, %en : f32) {{
        %m.0 = mul %b1, %em : f32
        %m.1 = mul %b1.rest, %e : f32
        %m.2 = add %m.0, %m.1 : f32
        %n.0 = mul %b2, %en : f32
        %n.1 = mul %e, %e : f32
        %n.2 = mul %b2.rest, %n.1 : f32
        %n.3 = add %n.0, %n.2 : f32
        %h.m = div %m.2, %c1 : f32
        %h.n = div %n.3, %c2 : f32
        %h.r = sqrt %h.n : f32
        %h.e = add %h.r, 0.001 : f32
        %h.u = div %h.m, %h.e : f32
        yield %h.u, %m.2, %n.3
      }} : {tree}, {tree}, {tree}{decaying if decay else ""}
      %{held}.next = map %{held}, %{"u.decay" if decay else "u"} {{where = ""}} (%a.p : f32, %a.u : f32) {{
        %a.s = mul %learning_rate, %a.u : f32
        %a.r = sub %a.p, %a.s : f32
        yield %a.r
      }} : {tree if master else "tree<default>"}{cast if master else ""}
      yield {", ".join("%" + n for n in new)}
    }} : {", ".join(kinds)}
    assign {", ".join("%" + k for k in keep)}, %attempt, %halted from({", ".join(f"%{k}.out" for k in keep)}, %step, %halted.next)
    report {{loss = %loss.mean, weight = %weight, grad_norm = %g.norm, committed = %ok, first_bad = %first, halted = %halted.next}}
  }}
}}
"""


def given(accum: int = 1, dtype: Any = np.float32, seed: int = 0) -> Values:
    """State in the middle of a run, one step's batch, the scalars."""
    rng = np.random.default_rng(seed)
    normal = {k: rng.normal(size=s).astype(np.float32) for k, s in SHAPES.items()}
    p = {k: (0.5 * v).astype(dtype) for k, v in normal.items()}
    made: Values = {
        "p": p,
        "mu": {k: rng.normal(size=s).astype(np.float32) * 0.01 for k, s in SHAPES.items()},
        "nu": {k: rng.random(size=s).astype(np.float32) * 0.01 for k, s in SHAPES.items()},
        "t": 6,
        "attempt": 2**32 + 8,
        "halted": False,
        "s": {"mean": rng.normal(size=INPUTS).astype(np.float32), "count": np.int32(5)},
        "learning_rate": 0.01,
        "b1": 0.9,
        "b2": 0.999,
        "weight_decay": 0.1,
        "smoothing": 0.05,
        "seed": SEED,
        "x": rng.normal(size=(accum, BATCH, INPUTS)).astype(np.float32),
        "y": rng.integers(0, CLASSES, (accum, BATCH)).astype(np.int32),
    }
    if dtype is not np.float32:
        made["master"] = {k: 0.5 * v for k, v in normal.items()}
    return made


def expected(v: Values, *, clip: float, decay: bool) -> Values:
    """The meaning of `step_text`, in float64 except for the imported gradient."""
    accum = len(v["x"])
    loss, weight, g = 0.0, 0.0, {k: np.zeros(s) for k, s in SHAPES.items()}
    mean, count = v["s"]["mean"], v["s"]["count"]
    for i in range(accum):
        leaves = [v["p"][k] for k in SHAPES]
        out = _gradient(
            *leaves, mean, count, np.float32(v["smoothing"]), SEED, SEED, i, v["x"][i], v["y"][i]
        )
        loss, weight = loss + float(out[0]), weight + float(out[1])
        for k, x in zip(SHAPES, out[2:-2], strict=True):
            g[k] = g[k] + np.asarray(x, np.float64)
        mean, count = np.asarray(out[-2]), np.int32(out[-1])
    g = {k: x / weight for k, x in g.items()}
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    if clip and norm > clip:
        g = {k: x * (clip / norm) for k, x in g.items()}
    t = v["t"] + 1
    mu = {k: 0.9 * v["mu"][k] + 0.1 * g[k] for k in SHAPES}
    nu = {k: 0.999 * v["nu"][k] + 0.001 * g[k] ** 2 for k in SHAPES}
    held = v.get("master", v["p"])
    u = {k: mu[k] / (1 - 0.9**t) / (np.sqrt(nu[k] / (1 - 0.999**t)) + 1e-3) for k in SHAPES}
    if decay:
        u = {k: u[k] + 0.1 * held[k] * (held[k].ndim > 1) for k in SHAPES}
    moved = {k: held[k] - v["learning_rate"] * u[k] for k in SHAPES}
    return {
        "p": moved, "master": moved, "mu": mu, "nu": nu, "t": t, "attempt": v["attempt"] + 1,
        "halted": False, "s": {"mean": mean, "count": count},
        "report": {
            "loss": loss / weight, "weight": weight, "grad_norm": norm, "committed": True,
            "first_bad": -1, "halted": False,
        },
    }  # fmt: skip


@functools.cache
def step(
    mode: str = "auto", dtype: str = "f32", commits: Commits = Commits.LOOP, **options: Any
) -> Case:
    function = imported({"f32": "float32", "bf16": "bfloat16"}[dtype])
    text = step_text(function.digest, dtype=dtype, **options)
    return emit_case(text, [function], mode=mode, commits=commits)


STATE = ("p", "mu", "nu", "t", "attempt", "halted", "s")
CASES = [
    {"accum": 1, "clip": 0.0, "decay": False},
    {"accum": 1, "clip": 0.1, "decay": True},
    {"accum": 3, "clip": 0.1, "decay": True},
    {"accum": 3, "clip": 100.0, "decay": False},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_numpy_interpreter_and_xla_agree(options: dict[str, Any]) -> None:
    case, v = step(**options), given(options["accum"])
    wanted = expected(v, clip=options["clip"], decay=options["decay"])
    wanted.pop("master")
    interpreted, run = case.interpret(v), case.run(v)
    assert run["report"]["committed"]
    assert_close(run, interpreted)
    assert_close(run, {k: wanted[k] for k in run})


@pytest.mark.parametrize("options", CASES, ids=str)
def test_every_layout_gives_the_same_bits(options: dict[str, Any]) -> None:
    runs = [step(mode, **options).run(given(options["accum"])) for mode in MODES]
    assert_same(runs[1], runs[0])
    assert_same(runs[2], runs[0])


@pytest.mark.parametrize("mode", MODES)
def test_bf16_parameters_move_through_f32_masters(mode: str) -> None:
    case = step(mode, "bf16", accum=3, clip=0.1, decay=True)
    v = given(3, ml_dtypes.bfloat16)
    run, interpreted = case.run(v), case.interpret(v)
    wanted = expected(v, clip=0.1, decay=True)
    assert_close(run["master"], interpreted["master"], rtol=1e-2)
    assert_close(run["master"], wanted["master"], rtol=1e-2)
    for k in SHAPES:
        assert run["p"][k].dtype == ml_dtypes.bfloat16
        assert_same(run["p"][k], run["master"][k].astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("commits", Commits)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", ["nan batch", "halted"])
def test_a_refused_step_changes_nothing_but_the_attempt(
    mode: str, bad: str, commits: Commits
) -> None:
    case, v = step(mode, commits=commits, accum=3, clip=0.1, decay=True), given(3)
    if bad == "halted":
        v["halted"] = True
    else:
        v["x"][1, 2, 3] = np.nan
    for made in (case.run(v), case.interpret(v)):
        assert not made["report"]["committed"]
        assert made["report"]["halted"]
        assert made["report"]["first_bad"] == (-1 if bad == "halted" else 0)
        assert made["attempt"] == v["attempt"] + 1
        for name in ("p", "mu", "nu", "s"):
            assert_same(made[name], {k: np.asarray(x) for k, x in v[name].items()})
        assert made["t"] == v["t"]


def test_both_forms_of_a_commit_compute_the_step() -> None:
    v = given(3)
    loop, select = (step(commits=c, accum=3, clip=0.1, decay=True).run(v) for c in Commits)
    assert select["report"]["committed"]
    assert_close(select, loop)


def test_stateful_buffers_are_donated() -> None:
    case = step(accum=3, clip=0.1, decay=True)
    buffers, results = case.start(given(3))
    donated = {a for a, _ in case.emitted.donate}
    for i, (entry, buffer) in enumerate(zip(case.emitted.args, buffers, strict=True)):
        assert buffer.is_deleted() == (i in donated), entry
        assert (entry.role in ("param", "slot", "state")) == (i in donated), entry
    for a, r in case.emitted.donate:
        assert case.emitted.args[a].name == case.emitted.results[r].name
    assert not any(x.is_deleted() for x in results)


def test_the_interface_is_explained_one_by_one() -> None:
    emitted = step(accum=3, clip=0.1, decay=True).emitted
    assert [(a.name, a.dtype, a.shape) for a in emitted.args] == [
        ("param.p:packed.f32", "f32", (10,)),
        ("param.p:packed.f32.decay", "f32", (56,)),
        ("slot.mu:packed.f32", "f32", (10,)),
        ("slot.mu:packed.f32.decay", "f32", (56,)),
        ("slot.nu:packed.f32", "f32", (10,)),
        ("slot.nu:packed.f32.decay", "f32", (56,)),
        ("slot.t", "i64", ()),
        ("slot.attempt", "i64", ()),
        ("slot.halted", "i1", ()),
        ("state.s:packed.f32", "f32", (5,)),
        ("state.s:packed.i32", "i32", (1,)),
        ("scalars", "f32", (1, 5)),
        ("seed", "ui32", (2,)),
        ("batch.x", "f32", (1, 3, BATCH, INPUTS)),
        ("batch.y", "i32", (1, 3, BATCH)),
        ("steps", "i32", ()),
    ]
    assert [(s.name, s.kind) for s in emitted.scalars] == [
        ("learning_rate", "optimizer"),
        ("b1", "optimizer"),
        ("b2", "optimizer"),
        ("weight_decay", "optimizer"),
        ("smoothing", "device"),
    ]
    assert [(w.name, w.index, w.words) for w in emitted.report] == [
        ("loss", 0, 1),
        ("weight", 1, 1),
        ("grad_norm", 2, 1),
        ("committed", 3, 1),
        ("first_bad", 4, 2),
        ("halted", 6, 1),
    ]
    assert emitted.results[-1].name == "report"
    assert emitted.results[-1].shape == (1, 7)
    assert "module @train_step" in emitted.text
    assert "mhlo.num_partitions = 1" in emitted.text


def test_the_commit_is_a_loop_for_scalars_and_one_for_trees_and_accumulation_one_more() -> None:
    text = step(accum=3, clip=0.1, decay=True).emitted.text
    assert "stablehlo.if" not in text
    assert text.count("stablehlo.while") == 3
    assert step(accum=1, clip=0.1, decay=True).emitted.text.count("stablehlo.while") == 2
    select = step(accum=1, clip=0.1, decay=True, commits=Commits.SELECT).emitted.text
    assert "stablehlo.while" not in select


def test_sums_are_f32_in_the_program_of_bf16_leaves() -> None:
    text = step("auto", "bf16", accum=3, clip=0.1, decay=True).emitted.text
    main = text[text.index("@main") :]
    assert main.count("stablehlo.reduce(") == len(SHAPES) + 1
    for reduced in re.findall(r"stablehlo\.reduce\(.*?: \((\S+),", main):
        assert reduced.endswith(("xf32>", "xi64>")), reduced
