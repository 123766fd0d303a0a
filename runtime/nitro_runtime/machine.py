"""A bundle on a device: its programs, compiled at first use, and the buffers they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.dtypes import np_dtype, spell
from nitro_runtime.errors import UsageError, near
from nitro_runtime.host import HostHooks
from nitro_runtime.manifest import ArgEntry, ProgramEntry
from nitro_runtime.pjrt import DeviceArray, Executable
from nitro_runtime.state import LIVING, Layout

CONSTANTS = "weights/constants.safetensors"
INITIAL = "weights/init.safetensors"
TRAIN = "train_step"
SAMPLED = "train_step_sampled"
INIT = "init"
DEVICE = "device/"


@dataclass
class Program:
    """A compiled program and how its arguments are found.

    `names`: its arguments in order. `donated`: (name, result index) of the buffers it hands on.
    """

    name: str
    entry: ProgramEntry
    run: Executable
    names: list[str]
    donated: list[tuple[str, int]]

    def result(self, role: str) -> int | None:
        """The index of the first result of `role`."""
        roles = [result.role for result in self.entry.results]
        return roles.index(role) if role in roles else None


class Machine:
    """The device half of a run.

    `cells` are the device buffers by argument name that outlast a call: living ones, constants,
    device values, seed and steps. `compiled` counts programs made ready so far.
    """

    def __init__(
        self,
        bundle: Bundle,
        device: pjrt.Device,
        host: HostHooks,
        compiler: Callable[[str, ProgramEntry, Callable[[], None] | None], Executable],
    ) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.device = device
        self.layout = Layout(bundle.manifest)
        self.cells: dict[str, DeviceArray] = {}
        self.device_values = {name: np.asarray(v) for name, v in host.device_arrays.items()}
        self.poll: Callable[[], None] | None = None
        """Called while a program compiles; what it raises ends the wait."""
        self._compiler = compiler
        self._programs: dict[str, Program] = {}
        self._place_fixed()

    # ------------------------------------------------------------------------------ buffers

    def _place_fixed(self) -> None:
        stored = self.bundle.arrays(CONSTANTS)
        for arg in self._args("const", "device"):
            if arg.role == "const":
                value = stored[f"const/{arg.value}"]
            else:
                value = self._device_value(arg.name.removeprefix("device."), stored)
            self.cells[arg.name] = self.put(value, arg)

    def _device_value(self, leaf: str, stored: Mapping[str, np.ndarray]) -> np.ndarray:
        if leaf not in self.device_values:
            if DEVICE + leaf not in stored:
                raise UsageError(63, f"no value for the Device field {leaf!r}")
            self.device_values[leaf] = stored[DEVICE + leaf]
        return self.device_values[leaf]

    def _args(self, *roles: str) -> Iterable[ArgEntry]:
        found = {
            arg.name: arg
            for program in self.manifest.programs.values()
            for arg in program.args
            if arg.role in roles
        }
        return found.values()

    def put(self, value: Any, arg: ArgEntry) -> DeviceArray:
        """A copy of `value` on the device, in the shape and dtype of `arg`."""
        array = np.asarray(value)
        if array.shape != arg.shape:
            array = array.reshape(arg.shape)
        return pjrt.put(array, self.device, arg.dtype)

    def seed(self, seed: int) -> None:
        """Places the seed, as two words, high first, and the count of steps per dispatch."""
        words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
        for arg in self._args("seed"):
            self.cells[arg.name] = self.put(words, arg)
        for arg in self._args("steps"):
            self.cells[arg.name] = self.put(np.ones((), np_dtype(arg.dtype)), arg)

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Places every living buffer from arrays by name; slots that are not there start afresh."""
        for arg in self.layout.args:
            self.cells[arg.name] = self.put(self.layout.pack(arg, arrays), arg)

    def initial(self) -> dict[str, np.ndarray]:
        """What the program `init` makes of the seed that is placed, by name."""
        program = self.program(INIT)
        results = zip(program.entry.results, self.call(program, {}), strict=True)
        buffers = {(r.role, r.buffer): pjrt.read(x).reshape(-1) for r, x in results}
        return {
            f"{group.role}/{leaf.path}": buffers[group.role, leaf.buffer][
                leaf.offset : leaf.offset + prod(leaf.shape)
            ].reshape(leaf.shape)
            for group in self.manifest.groups
            for leaf in group.leaves
            if group.role in ("param", "state")
        }

    def arrays(self, *roles: str) -> dict[str, np.ndarray]:
        """Host copies of the living arrays of `roles` (all by default), by name."""
        wanted = [arg for arg in self.layout.args if arg.role in (roles or LIVING)]
        for arg in wanted:
            pjrt.start_read(self.cells[arg.name])
        found: dict[str, np.ndarray] = {}
        for arg in wanted:
            found.update(self.layout.unpack(arg, pjrt.read(self.cells[arg.name])))
        return found

    def device_array(self, leaf: str, value: Any) -> np.ndarray:
        """`value` as the leaf holds it; E-USAGE-063 for another name, -065 for another shape."""
        arg = next((a for a in self._args("device") if a.name == f"device.{leaf}"), None)
        if arg is None:
            names = [a.name.removeprefix("device.") for a in self._args("device")]
            raise UsageError(
                63,
                f"no Device field {leaf!r}{near(leaf, names)}",
                where=f"field {leaf}",
                help=f"those there are: {', '.join(names) or 'none'}",
            )
        array = np.asarray(value)
        dtype = np_dtype(arg.dtype)
        if array.shape != arg.shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            found = f"{array.dtype}{list(array.shape)}"
            raise UsageError(
                65,
                f"{leaf} is {found}, expected {spell(arg.dtype, arg.shape)}",
                where=f"field {leaf}",
            )
        return array.astype(dtype)

    def set_device_array(self, leaf: str, array: np.ndarray) -> None:
        """Replaces an array Device value by what `device_array` gave."""
        (arg,) = (a for a in self._args("device") if a.name == f"device.{leaf}")
        self.device_values[leaf] = array
        self.cells[arg.name] = self.put(array, arg)

    # ----------------------------------------------------------------------------- programs

    def has(self, name: str) -> bool:
        """Whether the bundle holds the program."""
        return name in self.manifest.programs

    def program(self, name: str) -> Program:
        """The program, compiled now if it wasn't."""
        found = self._programs.get(name)
        if found is None:
            entry = self.bundle.program(name)
            run = self._compiler(name, entry, self.poll)
            donated = [(entry.args[arg].name, result) for arg, result in entry.donate]
            names = [arg.name for arg in entry.args]
            found = self._programs[name] = Program(name, entry, run, names, donated)
        return found

    @property
    def compiled(self) -> list[str]:
        """The programs made ready so far, in order."""
        return list(self._programs)

    def call(self, program: Program, given: Mapping[str, DeviceArray]) -> list[DeviceArray]:
        """Runs a program on the cells and `given`; donated results replace their cells."""
        cells = self.cells
        results = program.run([given[n] if n in given else cells[n] for n in program.names])
        for name, index in program.donated:
            cells[name] = results[index]
        return results

    def put_fields(
        self, args: Sequence[ArgEntry], fields: Mapping[str, np.ndarray]
    ) -> dict[str, DeviceArray]:
        """The batch fields on the device, by argument name."""
        return {arg.name: self.put(fields[field_of(arg)], arg) for arg in args}


def field_of(arg: ArgEntry) -> str:
    """The batch field of a `batch` argument."""
    return arg.name.removeprefix("batch.")


def batch_args(entry: ProgramEntry) -> list[ArgEntry]:
    """The batch fields a program takes."""
    return [arg for arg in entry.args if arg.role == "batch"]
