"""What was found not to be finite in a step, and how it is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from nitro_dialect.types import FLOATS
from nitro_runtime.dtypes import has_ir_dtype, ir_dtype, spell

NAN, INFINITY = "NaN", "infinity"

OPERATION = "operation"
LISTED = 4
"""How many parameters a line names."""


@dataclass(frozen=True)
class Nonfinite:
    """A value that is not finite.

    kind: `NaN` or `infinity`. what: `operation`, else what it was before any: `parameter`, `state`,
    `slot`, `batch field`, `Device field`, `scalar`, `constant`. name: the operation's (`divide`),
    or the path or field. result: `f32[4,3]`. source: `exp.py:41:5` of an operation; `` when it is
    not known. hook: where the operation comes from. parameters: key paths of those that the
    operation reads, or makes the gradient of: `note` says which. Of an input `note` says where in
    it. micro: the micro-batch, from 0.
    """

    kind: str
    what: str
    name: str
    result: str
    source: str = ""
    hook: str = ""
    parameters: tuple[str, ...] = ()
    micro: int | None = None
    note: str = ""

    def text(self, micros: int, *, first: bool = True) -> str:
        """One line. micros: how many micro-batches the step has. first: of its kind."""
        if self.what == OPERATION:
            parts = [f"{self.name} {self.result}", self.source, self.hook, *self._of_parameters()]
        else:
            parts = [f"{self.what} {self.name} {self.result}", self.note, "before any operation"]
        if self.micro is not None and micros > 1:
            parts.append(f"micro-batch {self.micro + 1} of {micros}")
        word = "first" if first else "another"
        return f"{word} {self.kind}: " + ", ".join(part for part in parts if part)

    def _of_parameters(self) -> list[str]:
        """What an operation has to do with parameters."""
        named = ", ".join(self.parameters[:LISTED])
        more = len(self.parameters) - LISTED
        return [f"{self.note} {named}{f' and {more} more' if more > 0 else ''}"] if named else []


_KINDS = {"param": "parameter", "state": "state", "slot": "slot", "device": "Device field"}


def found_in_state(state: Mapping[str, np.ndarray]) -> Iterator[Nonfinite]:
    """What parameters, model state, slots and Device fields hold, by `param/<path>` and so on."""
    order = list(_KINDS)
    for name in sorted(state, key=lambda name: order.index(name.partition("/")[0])):
        role, _, path = name.partition("/")
        of = (path,) if role == "param" else ()
        yield from _found(_KINDS[role], path, state[name], of)


def found_in_scalars(
    scalars: Mapping[str, float], devices: Mapping[str, object]
) -> Iterator[Nonfinite]:
    """What the scalars of the step are, as the f32 that a program takes."""
    for name, value in scalars.items():
        kind = "Device field" if name in devices else "scalar"
        with np.errstate(over="ignore"):
            yield from _found(kind, name, np.array(value, np.float32))


def found_in_constants(constants: Mapping[str, np.ndarray]) -> Iterator[Nonfinite]:
    """What arrays of the program hold."""
    for name, array in constants.items():
        yield from _found("constant", name, array)


def found_in_batch(batch: Mapping[str, np.ndarray]) -> Iterator[Nonfinite]:
    """What fields `[1, micro-batches, ...]` hold, in the first micro-batch that has any of it."""
    for micro in range(max((array.shape[1] for array in batch.values()), default=0)):
        found = [
            one for name, array in batch.items()
            for one in _found("batch field", name, array[0, micro], micro=micro)
        ]  # fmt: skip
        yield from found
        if found:
            return


def _found(
    what: str,
    name: str,
    array: np.ndarray,
    parameters: tuple[str, ...] = (),
    micro: int | None = None,
) -> Iterator[Nonfinite]:
    for kind, test in ((NAN, np.isnan), (INFINITY, np.isinf)):
        bad = test(_wide(array))
        if bad.any():
            place = [int(i) for i in np.argwhere(bad)[0]]
            count = f"{int(bad.sum())} of {bad.size} elements, the first at {place}"
            yield Nonfinite(
                kind,
                what,
                name,
                spell(ir_dtype(array.dtype), tuple(array.shape)),
                parameters=parameters,
                micro=micro,
                note=count if place else "",
            )


def _wide(array: np.ndarray) -> np.ndarray:
    """The same numbers in a dtype that numpy itself tests."""
    if array.dtype.kind in "fc" or not has_ir_dtype(array.dtype):
        return array
    return array.astype(np.float32) if ir_dtype(array.dtype) in FLOATS else np.zeros(1)
