"""Modules for tests: hypothesis strategies of valid ones, every table and name at its oddest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import (
    CHANNELS,
    MARK_KINDS,
    MARK_REDUCES,
    Const,
    Device,
    Function,
    Group,
    Input,
    Leaf,
    Mark,
    Module,
    Parameter,
    Program,
    Region,
    Rule,
    Value,
)
from nitro_dialect.ops import (
    Assign,
    Call,
    ClipByNorm,
    Commit,
    FoldLeaf,
    LeafFold,
    LeafMap,
    LeafSize,
    Map,
    Norm,
    Output,
    Report,
    RuleMark,
    Yield,
)
from nitro_dialect.types import (
    DTYPES,
    F32,
    I1,
    I64,
    SEED,
    TensorType,
    TreeType,
    Type,
    VecType,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]

WORDS = ("true", "nan", "inf", "weak", "loc", "param", "from", "tree", "seed", "yield", "-inf", "")
NAMES = st.one_of(
    st.sampled_from(
        ("loss", "g.clip", "metric/acc@0.5", "a-b", "x#1", "räum 模型", '"', "\\", *WORDS)
    ),
    st.from_regex(r"[a-z][a-z0-9_.]{0,5}", fullmatch=True),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
NUMBERS = st.one_of(st.floats(), st.integers(), st.booleans())
F32_WEAK = TensorType("f32", weak=True)


def unique(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=most, unique=True)


def tensors() -> st.SearchStrategy[Type]:
    return st.builds(
        TensorType,
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 300), max_size=3).map(tuple),
        st.booleans(),
    )


def leaf_paths() -> st.SearchStrategy[list[str]]:
    """Paths of a tree as the front end encodes them, then any others."""
    block = st.builds(
        lambda head, numbers, tails: [f"{head}{n}{tail}" for n in numbers for tail in tails],
        st.sampled_from(("block_", "layers.#", "#", "a%20", "w_0.b", "stage_1.block_")),
        st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True),
        st.lists(
            st.sampled_from((".q", ".k", ".sub_0.w", ".sub_1.w", "", "%7B0..1%7D")), unique=True
        ),
    )
    other = st.one_of(NAMES, st.sampled_from(("w_{0..3}.a", "@name", "b01", "b02", "%3A5")))
    return st.lists(st.one_of(block, other.map(lambda path: [path])), max_size=4).map(
        lambda runs: list(dict.fromkeys(path for run in runs for path in run))
    )


@st.composite
def groups(draw: Draw, name: str, role: str) -> Group:
    rows: list[Leaf] = []
    for path in draw(leaf_paths()):
        shape = draw(st.sampled_from(((), (4,), (64, 128))))
        flags = draw(st.sampled_from((frozenset(), {"decay"}, {"frozen", "key:fry"})))
        rows.append(Leaf(path, draw(st.sampled_from(("f32", "bf16"))), shape, frozenset(flags)))
    return Group(name, role, tuple(rows))


@st.composite
def rules(draw: Draw, name: str, marks: list[str]) -> Rule:
    elements, scalars = ("g", "mu"), tuple(draw(unique(st.sampled_from(("t", "b1", "eps.x")))))
    region = Region([Value(F32, n) for n in (*elements, *scalars)])
    names = Names([p.name for p in region.params])
    with building(region, names):
        made = arithmetic(draw, region.params)
        of_leaf = leaf_math(draw, made[-1])
        for key in draw(st.lists(st.sampled_from(marks), max_size=2)) if marks else ():
            channel = {"channel": draw(st.sampled_from(tuple(CHANNELS))), "key": key}
            emit(RuleMark, draw(st.one_of(st.just(of_leaf), st.floats())), attrs=channel)
        emit(Yield, made[-1], draw(st.floats()))
    structure = draw(
        st.dictionaries(
            NAMES, st.one_of(NUMBERS, NAMES, st.lists(NAMES, max_size=2).map(tuple)), max_size=3
        )
    )
    start = draw(st.one_of(st.just("zeros"), st.floats()))
    return Rule(name, elements, scalars, (("mu", start),), structure, region)


def leaf_math(draw: Draw, value: Value) -> Value:
    """One f32 of the leaf at hand."""
    how = draw(st.sampled_from(("sum", "max", "min", "size")))
    if how == "size":
        return emit(LeafSize, types=[F32], hints=["size"]).r
    return emit(LeafFold, value, types=[F32], hints=[how], attrs={"how": how}).r


def arithmetic(draw: Draw, given: list[Value]) -> list[Value]:
    """Some scalar ops on `given`, f32 values; all the values, the last one f32."""
    values = [v for v in given if v.type in (F32, F32_WEAK)]
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(("add", "sub", "mul", "pow", "min", "neg", "sqrt", "lt")))
        a = draw(st.sampled_from(values))
        b = draw(st.one_of(st.sampled_from(values), st.floats(), st.integers(-3, 3)))
        if name in ("neg", "sqrt"):
            values.append(emit_scalar(name, a))
        elif name == "lt":
            values.append(emit_scalar("select", emit_scalar("lt", a, b), b, a))
        else:
            values.append(emit_scalar(name, *draw(st.permutations((a, b)))))
    return values


@st.composite
def programs(draw: Draw, name: str, module: Module) -> Program:
    tree = TreeType("default")
    names = Names()
    inputs = [Input("param", Value(tree, names.fresh("p", "param")))]
    for role, kind, initial in draw(st.lists(_inputs(), max_size=4)):
        inputs.append(Input(role, Value(kind, names.fresh(draw(NAMES), role)), initial))
    for kind in draw(st.lists(st.sampled_from((F32, F32_WEAK)), min_size=1, max_size=4)):
        inputs.append(Input("scalars", Value(kind, names.fresh(draw(NAMES), "scalars"))))
    program = Program(name, inputs, Region())
    with building(program.body, names):
        _body(draw, program, module, names)
    for op in program.body.ops:
        op.location = draw(st.one_of(st.none(), st.just('exp "1".py:41:5'), NAMES))
    return program


def _inputs() -> st.SearchStrategy[tuple[str, Type, Any]]:
    start = st.one_of(st.none(), st.sampled_from(("zeros", "param", "host", "inf")), NUMBERS)
    return st.one_of(
        st.tuples(st.just("slot"), tensors(), start),
        st.tuples(st.sampled_from(("batch", "device", "const")), tensors(), st.none()),
        st.just(("seed", SEED, None)),
        st.just(("state", TreeType("state"), None)),
    )


def _body(draw: Draw, program: Program, module: Module, names: Names) -> None:
    p = program.inputs[0].value
    scalars = [i.value for i in program.inputs if i.role == "scalars"]
    for function in module.functions.values():
        args = [
            p if isinstance(q.type, TreeType) else draw(st.integers(0, 9)) for q in function.params
        ]
        kinds = [r.type for r in function.results]
        hints = [draw(NAMES) or "r" for _ in kinds]
        emit(Call, *args, types=kinds, hints=hints, symbol=function.name)
    values = arithmetic(draw, scalars)
    element = Value(F32, names.fresh("e", "square"))
    square, where = Region([element]), draw(st.sampled_from(("", "decay", "true", "a b")))
    with building(square, names):
        emit(Yield, element * element)
    how = {"how": "sum"}
    sq = emit(FoldLeaf, p, types=[VecType("default")], hints=["p.sq"], body=square, attrs=how)
    norm = emit(Norm, sq.r, types=[F32], hints=["p.norm"])
    ok = emit_scalar("lt", norm.r, draw(st.floats()))
    body = Region()
    with building(body, names):
        scaled = Region([Value(F32, names.fresh("e", "in"))])
        with building(scaled, names):
            emit(Yield, scaled.params[0] * draw(st.sampled_from(values)))
        as_f32 = [TreeType("default", "f32")]
        f32 = emit(Map, p, types=as_f32, hints=["u"], body=scaled, attrs={"where": where})
        by_leaf = Region([Value(F32, names.fresh("e", "in"))])
        with building(by_leaf, names):
            word = leaf_math(draw, by_leaf.params[0])
            emit(Yield, by_leaf.params[0] + draw(st.sampled_from(values)), word)
        kinds = [*as_f32, VecType("default")]
        emit(LeafMap, p, types=kinds, hints=["v", "v.word"], body=by_leaf)
        limit = {"max": draw(st.floats(1e-30, 1e30))}
        emit(ClipByNorm, f32.results[0], norm.r, types=as_f32, hints=["u.clip"], attrs=limit)
        emit(Yield, p)
    out = emit(Commit, ok, keep=[p], types=[p.type], hints=["p.out"], body=body).results[0]
    emit(Assign, p, from_=[out])
    words = draw(st.dictionaries(NAMES, st.sampled_from(values), max_size=3))
    emit(Report, entries=words)
    if draw(st.booleans()):
        emit(Output, entries={"param": out})


@st.composite
def modules(draw: Draw) -> Module:
    module = Module(draw(NAMES), draw(NAMES), draw(NAMES))
    module.consts = [
        Const(n, draw(st.one_of(NAMES, NUMBERS.map(repr)))) for n in draw(unique(NAMES))
    ]
    for name in draw(unique(NAMES)):
        module.devices.append(Device(name, draw(tensors()), draw(st.one_of(st.none(), NUMBERS))))
    for key in draw(unique(NAMES)):
        module.marks[key] = draw(marks(key))
    for name, role in (("default", "param"), ("state", "state"), (draw(NAMES) or "o", "outputs")):
        module.groups[name] = draw(groups(name, role))
    for name in draw(unique(NAMES, 2)):
        module.functions[name] = draw(functions(name, module))
    for name in draw(unique(NAMES, 1)):
        module.rules[name] = draw(rules(name, list(module.marks)))
    for name in draw(unique(NAMES, 2)):
        module.programs[name] = draw(programs(name, module))
    return module


@st.composite
def marks(draw: Draw, key: str) -> Mark:
    bounds = st.one_of(st.none(), st.floats(), st.integers())
    return Mark(
        key,
        draw(st.sampled_from(MARK_KINDS)),
        draw(NAMES),
        tuple(sorted(draw(st.dictionaries(NAMES, st.one_of(NUMBERS, NAMES), max_size=3)).items())),
        draw(st.sampled_from(MARK_REDUCES)),
        draw(bounds),
        draw(bounds),
        draw(st.one_of(st.just(""), st.just('exp "1".py:41:5'), NAMES)),
    )


@st.composite
def functions(draw: Draw, name: str, module: Module) -> Function:
    params = [
        Parameter(n, draw(st.sampled_from((TreeType("default"), I64, F32_WEAK))))
        for n in draw(unique(NAMES))
    ]
    kinds = st.one_of(
        tensors(), st.sampled_from(list(module.groups)).map(VecType), st.just(I1), st.just(SEED)
    )
    results = [Parameter(n, draw(kinds)) for n in draw(unique(NAMES))]
    for key in module.marks:
        channel = draw(st.sampled_from(list(CHANNELS)))
        results.append(Parameter(f"mark.{key}:{channel}", TensorType(CHANNELS[channel][0])))
    of, wrt = (
        draw(st.sampled_from((None, name))),
        draw(st.sampled_from((None, *(p.name for p in params)))),
    )
    return Function(name, tuple(params), tuple(results), draw(NAMES), of, wrt)
