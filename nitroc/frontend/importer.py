# pyright: basic
"""Traced functions to imported ones: their own module, rewritten, named, digested, serialised.

Works on a copy of what jax lowered, in the order of `STEPS`; the body stays StableHLO.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from nitro_dialect.ir import CHANNELS, Function, Group, Mark, Parameter
from nitro_dialect.marks import result_name
from nitro_dialect.types import TensorType
from nitro_runtime.trees import TreeSpec
from nitroc.errors import BuildError, ContractError
from nitroc.frontend import constants, convolutions, locations
from nitroc.frontend.harvest import Executions, Harvest
from nitroc.frontend.jax_internals import (
    default_version,
    deserialize_portable,
    hlo,
    ir,
    make_ir_context,
    own_copy,
    passmanager,
    portable_artifact,
)

hlo.register_stablehlo_passes()


@dataclass(frozen=True)
class TracedFunction:
    """What a trace hands over. `module` is jax's cached module and is never changed.

    `arguments[i]` are the names of the MLIR arguments of `params[i]`, one per leaf; hoisted
    constants are put before `params[constants_at]`. `marks` are those of the experiment by key,
    when the module holds any; their results are put before `results[marks_at]` (None: at the end),
    all before that being of rank 0.
    """

    name: str
    module: Any
    params: tuple[Parameter, ...]
    arguments: tuple[tuple[str, ...], ...]
    results: tuple[Parameter, ...]
    constants_at: int
    of: str | None = None
    wrt: str | None = None
    notes: tuple[str, ...] = ()
    outputs: Group | None = None
    tree_spec: TreeSpec | None = None
    marks: Mapping[str, Mark] = field(default_factory=dict)
    marks_at: int | None = None


@dataclass(frozen=True)
class ImportedFunction:
    """One imported function.

    `serialized` is a portable artifact whose functions are private and prefixed with
    `function.name`, locations kept; `text` is the same without locations and `function.digest` its
    sha256. `constants` are the hoisted arrays by name (parameter `const.<name>`). `outputs` and
    `tree_spec` describe what a forward returns. `executions` say where the marks run whose channels
    are results `mark.<key>:<channel>`.
    """

    function: Function
    serialized: bytes
    text: str
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    outputs: Group | None = None
    tree_spec: TreeSpec | None = None
    executions: Executions = field(default_factory=Executions)


@dataclass
class _Work:
    traced: TracedFunction
    module: Any
    root: str | None
    constants: dict[str, constants.Constant] = field(default_factory=dict)
    marks: list[Parameter] = field(default_factory=list)
    executions: Executions = field(default_factory=Executions)


def import_together(
    functions: Sequence[TracedFunction], root: str | None, version: str | None = None
) -> list[ImportedFunction]:
    """Imports functions that are called with the same arguments: each takes all their constants,
    and has the results of all their marks.

    `root` is the project's folder, `version` the StableHLO version written. Raises E-CONTRACT-001
    or 002 for what no bundle can hold, E-BUILD-040 for what that version can't.
    """
    works = [_Work(traced, own_copy(traced.module), root) for traced in functions]
    for work in works:
        _composites_to_calls(work)
    # before anything is serialised: a portable artifact can't hold an op of ours
    _marks_to_results(works)
    for work in works:
        # before arguments are placed: a token would be one more of them
        _refuse_host(work)
        _legalise(work)
        work.constants = constants.hoist(work.module, root)
    merged = {name: c for work in works for name, c in work.constants.items()}
    shared = dict(sorted(merged.items()))
    for work in works:
        _place_constants(work, shared)
        for step in STEPS:
            step(work)
    return [_finished(work, shared, version or default_version()) for work in works]


def _composites_to_calls(work: _Work) -> None:
    with work.module.context:
        pipeline = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"
        passmanager.PassManager.parse(pipeline).run(work.module.operation)


def _marks_to_results(works: Sequence[_Work]) -> None:
    """Every function gets the channels of all. E-CONTRACT-026 where executions are not counted."""
    harvests = [Harvest(w.module, w.traced.marks) if w.traced.marks else None for w in works]
    channels = {channel for harvest in harvests if harvest for channel in harvest.found}
    for work, harvest in zip(works, harvests, strict=True):
        if harvest is None:
            continue
        order = harvest.sorted(channels)
        harvest.finish(order, work.traced.marks_at)
        work.executions = harvest.executions
        work.marks = [
            Parameter(result_name(key, name), TensorType(CHANNELS[name][0])) for key, name in order
        ]
        left = [op.name for f in _functions(work.module) for op in _operations(f) if _is_ours(op)]
        assert not left, left
        work.module.context.allow_unregistered_dialects = False


def _is_ours(op: Any) -> bool:
    return op.name.startswith("nitro.")


def _legalise(work: _Work) -> None:
    """CHLO to StableHLO, as the serialiser does it.

    It makes functions of its own (`chlo.erf.impl`), which have to be there before symbols take
    their prefix; which of its passes those are, jaxlib doesn't say.
    """
    artifact = _serialized(work.module, work.traced.name, hlo.get_current_version())
    work.module = deserialize_portable(artifact, make_ir_context())


def _place_constants(work: _Work, shared: dict[str, constants.Constant]) -> None:
    """Puts the arguments of `main` in the order of the signature, `shared` among them."""
    main = next(_functions(work.module, "main"))
    block = main.regions[0].blocks[0]
    old = list(block.arguments)
    names = [name for group in work.traced.arguments for name in group]
    before = sum(len(group) for group in work.traced.arguments[: work.traced.constants_at])
    hoisted = dict(zip(work.constants, old[len(names) :], strict=True))
    own = list(zip(names, old[: len(names)], strict=True))
    with work.module.context:
        placed = [(f"const.{n}", hoisted.get(n), _tensor(c)) for n, c in shared.items()]
        order = [(n, a, a.type) for n, a in own[:before]]
        order += [*placed, *((n, a, a.type) for n, a in own[before:])]
        for name, argument, kind in order:
            new = block.add_argument(kind, ir.Location.name(name))
            if argument is not None:
                argument.replace_all_uses_with(new)
        for _ in old:
            block.erase_argument(0)
        results = list(ir.FunctionType(main.attributes["function_type"].value).results)
        kind = ir.FunctionType.get([k for _, _, k in order], results)
        main.attributes["function_type"] = ir.TypeAttr.get(kind)


def _tensor(constant: constants.Constant) -> Any:
    return ir.Type.parse(
        f"tensor<{''.join(f'{d}x' for d in constant.value.shape)}{constant.dtype}>"
    )


def _canonicalise_convolutions(work: _Work) -> None:
    convolutions.canonicalise(work.module)


_TOKEN_OPS = ("create_token", "after_all", "infeed", "outfeed", "send", "recv")


def _refuse_host(work: _Work) -> None:
    """Callbacks compile, then crash the process that runs them: none may get into a bundle."""
    for function in _functions(work.module):
        for op in _operations(function):
            if op.name == "stablehlo.custom_call" and "callback" in _target(op):
                raise _callback_error(op, work)
            if op.name.removeprefix("stablehlo.") in _TOKEN_OPS:
                raise _effect_error(op, work)
        if "!stablehlo.token" in str(function.attributes["function_type"]):
            raise _effect_error(function, work)


def _target(op: Any) -> str:
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _callback_error(op: Any, work: _Work) -> ContractError:
    primitive = locations.op_name(op.location).rpartition("/")[2]
    call = _CALLBACKS.get(primitive, "a host callback")
    return ContractError(
        1,
        f"{call} calls Python from inside @{work.traced.name}",
        where=locations.user_line(op.location, work.root),
        help="return the value from the hook (train_metrics), or compute it in a host hook "
        "(metrics)",
    )


_CALLBACKS = {
    "debug_callback": "jax.debug.callback",
    "debug_print": "jax.debug.print",
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
}


def _effect_error(op: Any, work: _Work) -> ContractError:
    return ContractError(
        2,
        f"@{work.traced.name} holds an ordered effect ({op.name})",
        where=locations.user_line(op.location, work.root),
        help="remove the effect; keep what it needs in `state`",
    )


def _prefix_symbols(work: _Work) -> None:
    """`main` takes the function's name, every other symbol that name as a prefix; all private."""
    name, module = work.traced.name, work.module
    with module.context:
        for op in list(module.body.operations):
            if "sym_name" not in op.attributes:
                continue
            old = op.attributes["sym_name"].value
            new = name if old == "main" else f"{name}.{old}"
            ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
            ir.SymbolTable.set_symbol_name(op, new)
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
            for attribute in ("arg_attrs", "res_attrs"):
                if attribute in op.attributes:
                    del op.attributes[attribute]
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)


def _relative_locations(work: _Work) -> None:
    locations.make_relative(work.module, work.root)


STEPS: tuple[Callable[[_Work], None], ...] = (
    _canonicalise_convolutions,
    _prefix_symbols,
    _relative_locations,
)
"""What is done to each function once its arguments are in order, and in which order."""


def _finished(work: _Work, shared: dict[str, constants.Constant], version: str) -> ImportedFunction:
    traced, module = work.traced, work.module
    _verify(module, traced.name)
    text = module.operation.get_asm(enable_debug_info=False)
    at = traced.constants_at
    params = (*traced.params[:at], *map(_parameter, shared.values()), *traced.params[at:])
    before = len(traced.results) if traced.marks_at is None else traced.marks_at
    function = Function(
        traced.name,
        params,
        (*traced.results[:before], *work.marks, *traced.results[before:]),
        hashlib.sha256(text.encode()).hexdigest(),
        of=traced.of,
        wrt=traced.wrt,
    )
    return ImportedFunction(
        function,
        _serialized(module, traced.name, version),
        text,
        {name: c.value for name, c in shared.items()},
        [*traced.notes, *(c.note(traced.name) for c in work.constants.values())],
        traced.outputs,
        traced.tree_spec,
        work.executions,
    )


def _parameter(constant: constants.Constant) -> Parameter:
    return Parameter(f"const.{constant.name}", TensorType(constant.dtype, constant.value.shape))


def _verify(module: Any, name: str) -> None:
    try:
        module.operation.verify()
    except ir.MLIRError as problem:
        raise BuildError(41, f"@{name} is not valid after its import: {problem}") from problem


def _serialized(module: Any, name: str, version: str) -> bytes:
    try:
        return portable_artifact(own_copy(module), version)
    except JaxRuntimeError as problem:
        found = re.search(r"([^\s:]+:\d+):\d+: error: (.{1,200})", str(problem))
        raise BuildError(
            40,
            f"@{name} can't be written for StableHLO {version}: "
            f"{found[2] if found else str(problem)[:200]}",
            where=found[1] if found else None,
            help="ask for a newer version (--compat current), or write the operation otherwise",
        ) from problem


def _functions(module: Any, name: str | None = None) -> Iterator[Any]:
    for op in module.body.operations:
        if op.operation.name != "func.func":
            continue
        if name is None or op.attributes["sym_name"].value == name:
            yield op.operation


def _operations(function: Any) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found
