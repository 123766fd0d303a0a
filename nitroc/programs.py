"""The module before its first pass: one program per role, calling imported functions.

Every imported function takes its arguments in one order: `params` and `state` (or `outputs`), the
hoisted constants, the Device leaves, `seed`, two counters, then the batch fields by name. Inputs of
programs are read off that signature, so a module's groups, functions and devices say it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import Function, Input, Module, Operand, Parameter, Program, Region, Value
from nitro_dialect.marks import channel_of, word_name
from nitro_dialect.ops import Assign, Call, Grad, Output, Report, Words
from nitro_dialect.types import I32, I64, SEED, WORDS, is_scalar
from nitroc.errors import BuildError

HEADS = {"params": "param", "state": "state", "outputs": "outputs"}
TRAIN = ("step", "micro")
EVALUATION = ("split", "index")
VALUE_NAMES = {"params": "p", "state": "s", "outputs": "out", "grad": "g"}
"""Names of values where they are not those of the functions' parameters and results."""

SLOT_DTYPES = ("f32", "i32", "i1")
"""Dtypes of a Device field that a word of the packed scalars holds."""


@dataclass(frozen=True)
class Signature:
    """An imported function's parameters by what they are, each part in the function's order."""

    head: tuple[Parameter, ...]
    consts: tuple[Parameter, ...]
    devices: tuple[Parameter, ...]
    counters: tuple[Parameter, ...]
    fields: tuple[Parameter, ...]


def signature(module: Module, function: Function, counters: Sequence[str]) -> Signature:
    """Splits by order; E-BUILD-008 when `seed` and `counters` are not where they belong."""
    params = function.params
    names = [p.name for p in params]
    head = 2 if names[:2] == ["params", "state"] else 1
    # A Device leaf may be called `const.x` too: that of a field `const` which holds a dict.
    leaves = {d.name for d in module.devices}
    consts = head
    while consts < len(params) and _hoisted(names[consts], leaves):
        consts += 1
    seed = next((i for i in range(consts, len(params)) if params[i].type == SEED), len(params))
    fields = seed + 1 + len(counters)
    if names[seed + 1 : fields] != list(counters) or not set(names[:head]) <= set(HEADS):
        raise BuildError(
            8,
            f"@{function.name} takes ({', '.join(names)}), expected params and state (or outputs), "
            f"constants, Device leaves, seed, {', '.join(counters)}, batch fields",
            help="import functions with their parameters in the shared order",
        )
    return Signature(
        params[:head], params[head:consts], params[consts:seed], params[seed + 1 : fields],
        params[fields:],
    )  # fmt: skip


def _hoisted(name: str, leaves: set[str]) -> bool:
    return name.startswith("const.") and name not in leaves


class _Inputs:
    """A program's inputs. Device leaves and fields keep their names, ours give way to them.

    A batch field that shares its name with a Device leaf or a constant is called `<field>.batch`.
    """

    def __init__(self, parts: Signature) -> None:
        self.names = Names()
        self.devices = [self._input(_device_role(p), p, p.name) for p in parts.devices]
        self.consts = [self._input("const", p, p.name.removeprefix("const.")) for p in parts.consts]
        self.fields = [self._input("batch", p, p.name.removeprefix("batch.")) for p in parts.fields]
        self.head = [self._input(HEADS[p.name], p, VALUE_NAMES[p.name]) for p in parts.head]
        self.seed = Input("seed", Value(SEED, self.names.fresh("seed", "run")))

    def _input(self, role: str, parameter: Parameter, hint: str) -> Input:
        return Input(role, Value(parameter.type, self.names.fresh(hint, role)))

    def args(self, counters: Sequence[Operand]) -> list[Operand]:
        """Arguments of a call, in the function's order."""
        before = [i.value for i in (*self.head, *self.consts, *self.devices, self.seed)]
        return [*before, *counters, *(i.value for i in self.fields)]

    def ordered(self, *counters: Input) -> list[Input]:
        """The program's inputs: head, constants, Device arrays, scalars, seed, counters, fields."""
        arrays = [i for i in self.devices if i.role == "device"]
        scalars = [i for i in self.devices if i.role == "scalars"]
        before = (*self.head, *self.consts, *arrays, *scalars)
        return [*before, self.seed, *counters, *self.fields]


def _device_role(parameter: Parameter) -> str:
    # A leaf of a nested value, `field.path`, is an input of its own whatever its shape.
    alone = "." not in parameter.name
    return "scalars" if alone and is_scalar(parameter.type, *SLOT_DTYPES) else "device"


def train_program(
    module: Module, *, objective: str = "objective", name: str = "train_step"
) -> Program:
    """Adds and returns the train step: the gradient of `@objective`, its state, its report.

    `%attempt` counts the steps tried, so the first is step 1; its words go to the function. Before
    `accumulate` the batch is one micro-batch, and the report holds that call's loss as it is.
    """
    function = module.functions[objective]
    inputs = _Inputs(signature(module, function, TRAIN))
    params, state = (i.value for i in inputs.head)
    attempt = Value(I64, inputs.names.fresh("attempt", "slot"))
    region = Region()
    with building(region, inputs.names):
        step = emit_scalar("add", attempt, 1, hint="step")
        words = emit(Words, step, types=[WORDS], hints=["step.words"]).results[0]
        results = _results_with_gradient(module, function, params)
        gradient = emit(
            Grad,
            *inputs.args([words, 0]),
            types=[r.type for r in results],
            hints=[_train_name(r.name) for r in results],
            symbol=objective,
            attrs={"wrt": "params"},
        )
        emit(Assign, state, attempt, from_=[gradient.results[-1], step])
        emit(Report, entries={"loss": gradient.results[0]})
    order = inputs.ordered()
    order.insert(1, Input("slot", attempt, 0))
    return _add(module, Program(name, order, region))


def _results_with_gradient(
    module: Module, function: Function, params: Value
) -> Sequence[Parameter]:
    """The objective's results, its gradient before the state, which is last.

    They are those of the imported gradient where there is one: a tap's marks are in it alone.
    """
    for other in module.functions.values():
        if other.of == function.name and other.wrt == "params":
            return other.results
    return [*function.results[:-1], Parameter("grad", params.type), function.results[-1]]


def _train_name(result: str) -> str:
    return "s.new" if result == "state" else _value_name(result.removeprefix("metric."))


def _value_name(result: str) -> str:
    found = channel_of(result)
    return VALUE_NAMES.get(result, result) if found is None else ".".join(found)


def replay_program(module: Module, name: str, plain: Function) -> Program:
    """Adds and returns `@replay`: one micro-batch of a step that was made before.

    `@name` is the gradient `plain` with one more parameter, a mask, and one more result, which with
    the state is an output. `%attempt` counts the steps before this one, `%micro` says which part.
    """
    function = module.functions[name]
    inputs = _Inputs(signature(module, plain, TRAIN))
    attempt = Input("slot", Value(I64, inputs.names.fresh("attempt", "slot")), 0)
    micro = Input("index", Value(I32, inputs.names.fresh("micro", "run")))
    mask = Input("mask", Value(function.params[-1].type, inputs.names.fresh("mask", "run")))
    region = Region()
    with building(region, inputs.names):
        step = emit_scalar("add", attempt.value, 1, hint="step")
        words = emit(Words, step, types=[WORDS], hints=["step.words"]).results[0]
        call = emit(
            Call,
            *inputs.args([words, micro.value]),
            mask.value,
            types=[r.type for r in function.results],
            hints=[_train_name(r.name) for r in function.results],
            symbol=name,
        )
        *_, state, first = call.results
        emit(Output, entries={"state": state, function.results[-1].name: first})
    order = inputs.ordered(micro, mask)
    order.insert(1, attempt)
    return _add(module, Program("replay", order, region))


def forward_program(module: Module, function: str) -> Program:
    """Adds and returns the program of `@forward.bN`: the outputs of one batch.

    What its marks count are words of a report; without marks it has none.
    """
    program, names, call = _evaluation(module, function)
    results = module.functions[function].results
    words: dict[str, Operand] = {
        word_name(*found): value
        for result, value in zip(results, call.results, strict=True)
        if (found := channel_of(result.name)) is not None
    }
    with building(program.body, names):
        if words:
            emit(Report, entries=words)
        emit(Output, entries={"outputs": call.results[0]})
    return program


def reduce_program(module: Module, function: str) -> Program:
    """Adds and returns the program of `@reduce.bN.rM`: sums of loss and metrics over M rows.

    Scalars are words of the report, those of marks by the names that `word_name` gives them; a
    `metric.<name>.concat` result is the output `metric.<name>`.
    """
    program, names, call = _evaluation(module, function)
    words: dict[str, Operand] = {}
    arrays: dict[str, Operand] = {}
    for result, value in zip(module.functions[function].results, call.results, strict=True):
        found = channel_of(result.name)
        if found is not None:
            words[word_name(*found)] = value
        elif result.name.endswith(".concat"):
            arrays[result.name.removesuffix(".concat")] = value
        else:
            words[result.name] = value
    with building(program.body, names):
        emit(Report, entries=words)
        if arrays:
            emit(Output, entries=arrays)
    return program


def _evaluation(module: Module, name: str) -> tuple[Program, Names, Call]:
    """A program of one call, without its terminator."""
    function = module.functions[name]
    parts = signature(module, function, EVALUATION)
    inputs = _Inputs(parts)
    counters = [
        Input(p.name, Value(p.type, inputs.names.fresh(p.name, "run"))) for p in parts.counters
    ]
    region = Region()
    with building(region, inputs.names):
        call = emit(
            Call,
            *inputs.args([c.value for c in counters]),
            types=[r.type for r in function.results],
            hints=[_value_name(r.name) for r in function.results],
            symbol=name,
        )
    return _add(module, Program(name, inputs.ordered(*counters), region)), inputs.names, call


def init_program(module: Module, function: str = "init") -> Program:
    """Adds and returns the program that makes the first parameters and state from the seed."""
    imported = module.functions[function]
    seed = Value(SEED, "seed")
    region = Region()
    with building(region, Names([seed.name])):
        call = emit(
            Call,
            seed,
            types=[r.type for r in imported.results],
            hints=[VALUE_NAMES[r.name] for r in imported.results],
            symbol=function,
        )
        keys = [HEADS[r.name] for r in imported.results]
        emit(Output, entries=dict(zip(keys, call.results, strict=True)))
    return _add(module, Program(function, [Input("seed", seed)], region))


def _add(module: Module, program: Program) -> Program:
    module.programs[program.name] = program
    return program


__all__ = [
    "TRAIN",
    "forward_program",
    "init_program",
    "reduce_program",
    "replay_program",
    "signature",
    "train_program",
]
