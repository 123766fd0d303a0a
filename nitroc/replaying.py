"""The gradient function of a failed step, micro-batch by micro-batch, with a look after each of its
operations: `@replay`, a program of its own that is emitted like any other and compiled here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nitro_dialect import parse
from nitro_dialect.ir import Parameter
from nitro_dialect.types import TreeType
from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.machine import CONSTANTS, SAMPLED, field_of
from nitro_runtime.manifest import ArgEntry
from nitro_runtime.replay import Replay
from nitro_runtime.scalars import Scalars
from nitroc.emit.compat import resolve_compat
from nitroc.emit.layout import plan
from nitroc.emit.program import EmittedProgram, emit_program
from nitroc.frontend.harvest import FIRST, NONE
from nitroc.frontend.instrument import Instrumented, instrument
from nitroc.frontend.sites import Site
from nitroc.nonfinite import OPERATION, Nonfinite
from nitroc.programs import replay_program

Arrays = Mapping[str, np.ndarray]

_SCOPE = re.compile(r"(transpose\()?(?:jvp\()?(\w+)\)*")
"""`jvp(forward)` or `transpose(jvp(forward))`, the hook in what jax calls an operation."""


@dataclass(frozen=True)
class Micro:
    """One micro-batch: its index, the model state before it, and the number of the first operation
    that is not finite, None where there is none, by the entries of `instrument`."""

    index: int
    state: Arrays
    first: Sequence[int | None]


class Replaying:
    """The micro-batches of a failed step, run on `device`."""

    def __init__(self, bundle: Bundle, failed: Replay, device: pjrt.Device) -> None:
        self.bundle = bundle
        self.failed = failed
        self.device = device
        self.module = parse(bundle.read("ir/import.nir").decode())
        self.made = self._instrumented()
        self.program = self._emitted()
        self._run = pjrt.compile(
            self.program.artifact, device, self.program.args, self.program.results
        )
        self._constants = bundle.arrays(CONSTANTS)
        self._scalars = Scalars(self.program.scalars, failed.record["scalars"], {})

    def _instrumented(self) -> Instrumented:
        names = ["objective.grad"]
        if self.failed.record["program"] == SAMPLED:
            names.insert(0, "objective.sampled.grad")
        name = next(name for name in names if name in self.module.functions)
        function = self.module.functions[name]
        return instrument(function, self.bundle.read(f"functions/{function.digest}.shlo"))

    def _emitted(self) -> EmittedProgram:
        made = self.made.function
        plain = self.module.functions[made.name]
        module = replace(self.module, functions={made.name: made}, programs={})
        replay_program(module, made.name, plain)
        return emit_program(
            module,
            "replay",
            {made.digest: self.made.serialized},
            layouts={name: plan(group, "leaves") for name, group in module.groups.items()},
            version=resolve_compat("current"),
        )

    def micros(self) -> Iterator[Micro]:
        """One after the other, the model state handed on."""
        prefix = "state/"
        state: Arrays = {
            name.removeprefix(prefix): array
            for name, array in self.failed.state.items()
            if name.startswith(prefix)
        }
        count = self.bundle.program(self.failed.record["program"]).dims.get("accum", 1)
        for index in range(count):
            first, after = self._micro(index, state, ())
            yield Micro(index, state, first)
            state = after

    def without(self, micro: Micro, ignored: Iterable[int]) -> Micro:
        """The same micro-batch, without a look at the operations that are `ignored`."""
        first, _ = self._micro(micro.index, micro.state, ignored)
        return replace(micro, first=first)

    def _micro(
        self, index: int, state: Arrays, ignored: Iterable[int]
    ) -> tuple[list[int | None], dict[str, np.ndarray]]:
        given = [
            pjrt.put(
                self._value(arg, index, state, ignored).reshape(arg.shape), self.device, arg.dtype
            )
            for arg in self.program.args
        ]
        results = zip(self.program.results, map(pjrt.read, self._run(given)), strict=True)
        named = {(r.role, r.buffer or r.name): array for r, array in results}
        after = {name: array for (role, name), array in named.items() if role == "state"}
        first = named["outputs", FIRST].tolist()
        return [None if number == NONE else number for number in first], after

    def _value(
        self, arg: ArgEntry, index: int, state: Arrays, ignored: Iterable[int]
    ) -> np.ndarray:
        record = self.failed.record
        match arg.role:
            case "param":
                return self.failed.state[f"param/{arg.buffer}"]
            case "state":
                return state[str(arg.buffer)]
            case "slot":
                return self.failed.state[f"slot/{arg.value}"]
            case "const":
                return self._constants[f"const/{arg.value}"]
            case "device":
                return self.failed.state[arg.name.replace("device.", "device/", 1)]
            case "scalars":
                return self._scalars.pack(self.program.scalars, arg.shape)
            case "seed":
                return np.array([record["seed"] >> 32, record["seed"] & 0xFFFFFFFF], np.uint32)
            case "index":
                return np.array(index, np.int32)
            case "mask":
                return self.made.numbers(ignored)
            case _:
                return self.failed.batch[field_of(arg)][0, index]

    # ------------------------------------------------------------------------------- in words

    def operation(self, kind: str, number: int, micro: Micro) -> Nonfinite:
        """What is known of the operation of that number."""
        site = self.made.sites.at(number)
        arguments = list(self._arrays(self.made.function.params, "params"))
        results = list(self._arrays(self.made.function.results, "grad"))
        makes = _named(results, site.makes)
        reads = _named(arguments, site.reads)
        return Nonfinite(
            kind,
            OPERATION,
            site.op,
            site.result,
            source=site.source or "",
            hook=self._hook(site),
            parameters=makes or reads,
            micro=micro.index,
            note="makes the gradient of" if makes else "reads" if reads else "",
        )

    def _arrays(self, members: Sequence[Parameter], tree: str) -> Iterator[str | None]:
        """Per array of a signature, the leaf of `tree` that it is; None for another."""
        for member in members:
            if isinstance(member.type, TreeType):
                for leaf in self.module.groups[member.type.group].leaves:
                    yield leaf.path if member.name == tree else None
            else:
                yield None

    def _hook(self, site: Site) -> str:
        hooks = self.bundle.manifest.routing.hooks
        for part in site.scope.split("/")[1:]:
            found = _SCOPE.fullmatch(part)
            if found is None or found[2] not in hooks:
                continue
            where = "" if site.source else f" ({hooks[found[2]].source})"
            return f"in {'the gradient of ' if found[1] else ''}{found[2]}{where}"
        return ""


def _named(names: Sequence[str | None], indices: Iterable[int]) -> tuple[str, ...]:
    return tuple(name for i in sorted(indices) if (name := names[i]) is not None)
