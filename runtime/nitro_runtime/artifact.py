# pyright: basic
"""What a StableHLO portable artifact says of itself: the runtime's only reader of MLIR.

The deserialiser checks nothing: a future version passes, and a flipped byte yields another program,
a hang or a dead process. So the header is read here without MLIR, and `inspect` is for bytes whose
hash is known to be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

MAGIC = b"ML\xefR"
_PRODUCER = re.compile(rb"StableHLO_v(\d{1,9})\.(\d{1,9})\.(\d{1,9})\Z")
_PRODUCER_BOUND = 64

DIALECTS = ("stablehlo", "chlo", "sdy")
CALLS = ("func.call", "func.return")
HOST_OPS = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv")

CUSTOM_CALLS = (
    "ApproxTopK",
    "Eigh",
    "LuDecomposition",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "TopK",
    "annotate_device_placement",
    "cu_threefry2x32_ffi",
    "hip_threefry2x32_ffi",
    "mhlo.topk",
)
"""Custom calls by name that compute on the device alone."""
KERNELS = re.compile(r"(lapack|cusolver|hipsolver|cusparse|hipsparse|cublas|hipblas)_\w+_ffi\Z")
"""The linear-algebra kernels that ship with jaxlib."""

Version = tuple[int, int, int]


class ArtifactError(ValueError):
    """The bytes are no portable artifact this runtime can read; the message says why."""


@dataclass(frozen=True)
class Tensor:
    """The static type of an argument or result, dtype as the IR spells it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass
class Inspection:
    """What `main` takes and returns, and every rule that the program breaks.

    donate: pairs (argument index, result index). custom_calls: targets, sorted.
    """

    args: tuple[Tensor, ...] = ()
    results: tuple[Tensor, ...] = ()
    donate: tuple[tuple[int, int], ...] = ()
    custom_calls: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)


def header_version(data: bytes) -> Version:
    """The StableHLO version an artifact was written for, from its header alone.

    Raises:
        ArtifactError: no magic, no varint, no producer `StableHLO_vM.m.p`.
    """
    if data[:4] != MAGIC:
        raise ArtifactError(f"starts with {data[:4].hex(' ') or 'nothing'}, expected 4d 4c ef 52")
    start = 4 + _varint_length(data[4:5])
    end = data.find(b"\0", start, start + _PRODUCER_BOUND)
    match = _PRODUCER.match(data[start:end]) if end >= 0 else None
    if match is None:
        raise ArtifactError("the header names no StableHLO version")
    major, minor, patch = (int(part) for part in match.groups())
    return major, minor, patch


def supported_versions() -> tuple[Version, Version]:
    """The oldest and the newest StableHLO version this runtime reads."""
    return _version(stablehlo.get_minimum_version()), _version(stablehlo.get_current_version())


def spell_version(version: Version) -> str:
    """`1.13.7`."""
    return ".".join(map(str, version))


def allowed_custom_call(target: str) -> bool:
    """Whether a program may call `target`: it is known to compute on the device alone."""
    return target in CUSTOM_CALLS or KERNELS.match(target) is not None


def inspect(data: bytes) -> Inspection:
    """Parses an artifact whose hash is right and checks it against the rules of a program.

    Never raises for what the program holds: each broken rule is one of `problems`.
    """
    with ir.Context() as context:
        for dialect in (stablehlo, chlo, sdy):
            dialect.register_dialect(context)
        messages: list[str] = []
        # Without a handler MLIR prints to the terminal.
        context.attach_diagnostic_handler(lambda said: messages.append(said.message) or True)
        try:
            return _inspect(context, data)
        except (ValueError, ir.MLIRError) as error:  # both are the deserialiser's refusals
            return Inspection(problems=[messages[0] if messages else str(error)])


def location_free_text(data: bytes) -> str:
    """The program as text without locations, for an artifact whose hash is right.

    Equal programs have equal texts wherever their source lies, so it keys compiled ones.
    """
    with ir.Context() as context:
        for dialect in (stablehlo, chlo, sdy):
            dialect.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, data)
        return str(module.operation.get_asm(enable_debug_info=False, large_elements_limit=None))


def _inspect(context: ir.Context, data: bytes) -> Inspection:
    module = stablehlo.deserialize_portable_artifact(context, data)
    module.operation.verify()
    found = Inspection()
    targets: set[str] = set()
    calls: dict[str, set[str]] = {}
    for function in module.body.operations:
        if function.operation.name == "sdy.mesh":
            continue
        if function.operation.name != "func.func":
            found.problems.append(f"{function.operation.name} beside the functions")
            continue
        name = _text(function.attributes["sym_name"])
        calls[name] = _check_function(function.operation, name, targets, found.problems)
    found.custom_calls = tuple(sorted(targets))
    _check_custom_calls(targets, found.problems)
    _check_recursion(calls, found.problems)
    _read_main(module, found)
    return found


def _check_function(
    function: ir.Operation, name: str, targets: set[str], problems: list[str]
) -> set[str]:
    """Checks every operation of a function; adds its custom calls and returns what it calls."""
    callees: set[str] = set()
    if not len(function.regions[0].blocks):
        problems.append(f"@{name} is declared but not defined")
    for op in _operations(function):
        if op.name.split(".")[0] not in DIALECTS and op.name not in CALLS:
            problems.append(f"{op.name} in @{name} is not allowed")
        if op.name in HOST_OPS:
            problems.append(f"{op.name} in @{name} talks to the host")
        if op.name == "stablehlo.custom_call":
            targets.add(_text(op.attributes["call_target_name"]))
        callees |= _callees(op)
        for type in _types(op):
            if not _static(type):
                problems.append(f"{op.name} in @{name} has the type {type}, not a static one")
    return callees


def _operations(root: ir.Operation) -> Iterator[ir.Operation]:
    """Every operation below `root`, without recursion: the depth is the file's."""
    pending = [root]
    while pending:
        for region in pending.pop().regions:
            for block in region:
                for op in block.operations:
                    yield op.operation
                    if len(op.operation.regions):
                        pending.append(op.operation)


def _types(op: ir.Operation) -> Iterator[ir.Type]:
    for result in op.results:
        yield result.type
    for region in op.regions:
        for block in region:
            for argument in block.arguments:
                yield argument.type


def _static(type: ir.Type) -> bool:
    """Static tensors, tokens, and tuples of them."""
    if isinstance(type, ir.RankedTensorType):
        return type.has_static_shape
    return not isinstance(type, ir.UnrankedTensorType)


def _callees(op: ir.Operation) -> set[str]:
    if op.name == "func.call":
        return {_text(op.attributes["callee"])}
    if op.name == "stablehlo.composite":
        return {_text(op.attributes["decomposition"])}
    if op.name == "stablehlo.custom_call" and "called_computations" in op.attributes:
        return {_text(symbol) for symbol in ir.ArrayAttr(op.attributes["called_computations"])}
    return set()


def _check_custom_calls(targets: set[str], problems: list[str]) -> None:
    for target in sorted(targets):
        if "callback" in target:
            problems.append(f"custom call {target} calls back into Python on the host")
        elif not allowed_custom_call(target):
            problems.append(f"custom call {target} is not on the list of allowed ones")


def _check_recursion(calls: dict[str, set[str]], problems: list[str]) -> None:
    """Removes functions that call none left; what stays calls itself (and kills the compiler)."""
    left = dict(calls)
    while leaves := [name for name, callees in left.items() if not callees & left.keys()]:
        for name in leaves:
            del left[name]
    if left:
        problems.append(f"functions call each other in a circle: {', '.join(sorted(left))}")


def _read_main(module: ir.Module, found: Inspection) -> None:
    public = [
        function
        for function in module.body.operations
        if function.operation.name == "func.func" and _is_public(function)
    ]
    names = [_text(function.attributes["sym_name"]) for function in public]
    if names != ["main"]:
        found.problems.append(f"expected one public function main, found {names or 'none'}")
        return
    type = ir.FunctionType(ir.TypeAttr(public[0].attributes["function_type"]).value)
    found.args = _tensors(type.inputs, "argument", found.problems)
    found.results = _tensors(type.results, "result", found.problems)
    found.donate = _donations(public[0], found.problems)


def _is_public(function: ir.OpView) -> bool:
    attributes = function.attributes
    return "sym_visibility" not in attributes or _text(attributes["sym_visibility"]) == "public"


def _tensors(types: list[ir.Type], what: str, problems: list[str]) -> tuple[Tensor, ...]:
    tensors: list[Tensor] = []
    for index, type in enumerate(types):
        if not isinstance(type, ir.RankedTensorType) or not _static(type):
            problems.append(f"{what} {index} of main is {type}, not a tensor of static shape")
            return ()
        tensors.append(Tensor(_dtype(type.element_type), tuple(type.shape)))
    return tuple(tensors)


def _dtype(element: ir.Type) -> str:
    """The IR's spelling: MLIR's own but for complex numbers, named by their whole width."""
    return {"complex<f32>": "c64", "complex<f64>": "c128"}.get(str(element), str(element))


def _donations(main: ir.OpView, problems: list[str]) -> tuple[tuple[int, int], ...]:
    if "arg_attrs" not in main.attributes:
        return ()
    pairs: list[tuple[int, int]] = []
    for index, attributes in enumerate(ir.ArrayAttr(main.attributes["arg_attrs"])):
        attributes = ir.DictAttr(attributes)
        if "jax.buffer_donor" in attributes:
            problems.append(f"argument {index} of main is donated to no result in particular")
        if "tf.aliasing_output" in attributes:
            pairs.append((index, ir.IntegerAttr(attributes["tf.aliasing_output"]).value))
    return tuple(pairs)


def _text(attribute: ir.Attribute) -> str:
    """The string of a string or symbol attribute."""
    if isinstance(attribute, ir.StringAttr):
        return attribute.value
    return ir.FlatSymbolRefAttr(attribute).value


def _version(text: str) -> Version:
    major, minor, patch = (int(part) for part in text.split("."))
    return major, minor, patch


def _varint_length(first: bytes) -> int:
    """Bytes of MLIR's prefix varint: as many more follow as the first has low zero bits."""
    if not first:
        raise ArtifactError("the header ends after its magic")
    value = first[0]
    return 9 if value == 0 else (value & -value).bit_length()
