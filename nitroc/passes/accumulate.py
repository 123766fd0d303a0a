"""`accumulate{steps=N}`: the step's gradient is that of N micro-batches, divided once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import CHANNELS, Literal, Module, Program, Region, Value
from nitro_dialect.marks import channel_of, word_name
from nitro_dialect.ops import Accum, At, Call, TreeDiv, Yield
from nitro_dialect.rewrite import clone
from nitro_dialect.types import I32, TensorType, TreeType, Type
from nitroc.errors import BuildError, OptError
from nitroc.passes.structure import before, before_assign, find, report, train_programs
from nitroc.programs import TRAIN, signature


@dataclass(frozen=True)
class Accumulate:
    """Batches become `[steps, B, ...]`; loss, weight, metrics and gradient are summed, in f32.

    What marks count is combined channel by channel: counts are summed, exactly; extremes are those
    of all micro-batches. Model state goes from one micro-batch to the next. The summed loss and
    gradient are divided once by the summed weight, so a `(sum, weight)` loss is that of the merged
    batch; a scalar loss has weight 1, and is a mean over micro-batches. One step emits no loop.
    """

    steps: int = 1
    name: ClassVar[str] = "accumulate"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise OptError(
                10,
                f"accum is {self.steps}, expected at least 1",
                help="accum is the number of micro-batches of one optimizer step",
            )

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        for program in train_programs(module):
            _accumulate(module, program, self.steps)
        return module


def _accumulate(module: Module, program: Program, steps: int) -> None:
    names = Names.of(program)
    call = _gradient_call(module, program)
    function = module.functions[call.callee]
    results = dict(zip((r.name for r in function.results), call.results, strict=True))
    batches = [i.value for i in program.inputs if i.role == "batch"]
    for value in batches:
        kind = cast(TensorType, value.type)
        value.type = TensorType(kind.dtype, (steps, *kind.shape))
    if steps == 1:
        _only(program, call, batches, names)
    else:
        _loop(module, program, call, batches, names, steps)
    _divide(module, program, results, names)


def _gradient_call(module: Module, program: Program) -> Call:
    call = find(program, Call)
    if call is None or module.functions[call.callee].of is None:
        raise BuildError(
            4,
            f"accumulate found no call of a gradient in @{program.name}",
            help="put differentiate before accumulate in the pipeline",
        )
    return call


def _only(program: Program, call: Call, batches: list[Value], names: Names) -> None:
    with building(program.body, names, before(program, call)):
        entries = {value: _first(value) for value in batches}
    _rewire(call, entries)


def _first(value: Value) -> Value:
    at = emit(At, value, types=[_entry(value)], hints=[f"{value.name}.0"], attrs={"index": 0})
    return at.r


def _loop(
    module: Module,
    program: Program,
    call: Call,
    batches: list[Value],
    names: Names,
    steps: int,
) -> None:
    """Wraps the call in `accum`, whose results take the call's places."""
    function = module.functions[call.callee]
    micro = len(function.params) - len(signature(module, function, TRAIN).fields) - 1
    hows = tuple(_how(r.name) for r in function.results[:-1])
    state = _state(program)
    index = Value(I32, names.fresh("i", "micro"))
    entries = {
        value: Value(_entry(value), names.fresh(f"{value.name}.i", "micro")) for value in batches
    }
    carried = Value(state.type, names.fresh(f"{state.name}.i", "micro"))
    body = Region([index, *entries.values(), carried])
    place = before(program, call)
    program.body.ops.remove(call)
    made = [Value(r.type, names.fresh(f"{r.name}.i", "micro")) for r in call.results]
    inner = Call(
        {"args": list(call.args)}, symbol=call.callee, results=made, location=call.location
    )
    _rewire(inner, {**entries, state: carried})
    inner.args[micro] = index
    body.ops.append(inner)
    with building(body, names):
        emit(Yield, *made)
    for result in call.results[:-1]:
        result.type = _sum(result.type)
    accum = Accum(
        {"over": list(batches), "carry": [state]},
        attrs={"how": hows, "steps": steps},
        results=call.results,
        body=body,
        location=call.location,
    )
    program.body.ops.insert(place, accum)


def _how(result: str) -> str:
    """How a result of the micro-batches becomes the step's: a mark's channel as that combines."""
    found = channel_of(result)
    return "sum" if found is None else CHANNELS[found[1]][1]


def _state(program: Program) -> Value:
    return next(i.value for i in program.inputs if i.role == "state")


def _entry(value: Value) -> TensorType:
    kind = cast(TensorType, value.type)
    return TensorType(kind.dtype, kind.shape[1:])


def _sum(kind: Type) -> Type:
    """Gradients narrower than f32 are summed in f32."""
    return TreeType(kind.group, "f32") if isinstance(kind, TreeType) else kind


def _rewire(call: Call, given: dict[Value, Value]) -> None:
    call.operands["args"] = [given.get(a, a) if isinstance(a, Value) else a for a in call.args]


def _divide(module: Module, program: Program, results: dict[str, Value], names: Names) -> None:
    loss, weight, gradient = results["loss"], results["weight"], results["grad"]
    group = cast(TreeType, gradient.type).group
    with building(program.body, names, before_assign(program)):
        mean = emit_scalar("div", loss, weight, hint="loss.mean")
        emit(TreeDiv, gradient, weight, types=[TreeType(group, "f32")], hints=["g.mean"])
    words: dict[str, Value | Literal] = {"loss": mean, "weight": weight}
    for key, value in results.items():
        if key.startswith("metric."):
            words[f"metric/{key.removeprefix('metric.')}"] = value
    report(program).update(words | _mark_words(module, results))


def _mark_words(module: Module, results: dict[str, Value]) -> dict[str, Value | Literal]:
    """Words of the report for every channel, in the order of the module's marks."""
    order = list(module.marks)
    rows = [(found, v) for name, v in results.items() if (found := channel_of(name)) is not None]
    rows.sort(key=lambda row: order.index(row[0][0]))
    return {word_name(*found): value for found, value in rows}
