# pyright: basic
"""The one seam with PJRT: devices, buffers, executables, and jaxlib's private names.

Backends check little. A CPU compares only the count of arguments and their size in bytes, so that
i32 passed for f32 runs and returns wrong numbers; everything is checked here, before each call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform as host_platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import jax
import jaxlib.version
import numpy as np
from jax.core import ShapedArray
from jaxlib import _jax, xla_client  # pyright: ignore[reportAttributeAccessIssue]

from nitro_runtime.dtypes import has_ir_dtype, ir_dtype, native, np_dtype, spell
from nitro_runtime.errors import DataError, DeviceError
from nitro_runtime.interruptible import interruptible

Device: TypeAlias = Any  # jaxlib's class carries no types
DeviceArray: TypeAlias = jax.Array

_ArrayImpl: Any = _jax.ArrayImpl
# A copy is made before `put` returns: the caller may refill its buffer at once.
_COPY: Any = _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
# A program's results were typed when it was compiled; from jaxlib 0.11 on nothing checks them anew.
UNCHECKED: dict[str, bool] = (
    {} if jaxlib.version.__version_info__ >= (0, 11) else {"_skip_checks": True}
)


class TensorEntry(Protocol):
    """One argument or result: a name for messages, an IR dtype, a shape."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Memory:
    """What one call of an executable takes, in bytes; `peak` counts donated buffers once."""

    arguments: int
    results: int
    aliased: int
    temporaries: int
    peak: int


# ---------------------------------------------------------------------------------- devices


def platforms() -> list[str]:
    """The platforms this machine's jaxlib started, the default one first."""
    found = [device.platform for device in devices()]
    for name in ("cpu", "gpu", "tpu"):
        try:
            found += [device.platform for device in jax.devices(name)]
        except RuntimeError:  # jax's way of saying that this backend is not there
            continue
    return list(dict.fromkeys(found))


def devices(platform: str | None = None) -> list[Device]:
    """The visible devices of `platform`, or of the default one.

    Raises E-DEVICE-020 for a platform that is not there, listing those that are, and E-DEVICE-021
    when no backend starts at all.
    """
    try:
        return list(jax.devices(platform))
    except RuntimeError as error:
        if platform is None:
            raise DeviceError(
                21, f"no backend starts: {_first_line(error)}", help="check JAX_PLATFORMS"
            ) from error
        names = ", ".join(platforms())
        raise DeviceError(
            20, f"no backend {platform!r} on this machine", help=f"the backends here are: {names}"
        ) from error


@functools.cache
def _sharding(device: Device) -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(device)


@functools.lru_cache(maxsize=4096)
def _aval(dtype: np.dtype[Any], shape: tuple[int, ...]) -> ShapedArray:
    """One object per type: comparing two lists of them is then comparing pointers."""
    return ShapedArray(shape, dtype)


# ---------------------------------------------------------------------------------- buffers


def put(x: Any, device: Device, dtype: str | None = None) -> DeviceArray:
    """A copy of `x` on `device`, with numpy's meaning of its strides and byte order.

    Never shares memory with `x`, which may be refilled at once, and keeps 64-bit dtypes. `dtype`
    (an IR spelling) converts within one kind: f64 to f32, i64 to i32. Raises E-DATA-030 for a
    dtype no program holds, E-DEVICE-032 for a change of kind, E-DEVICE-030 when memory is out.
    """
    array = _placeable(np.asarray(x), dtype)
    aval = _aval(array.dtype, array.shape)
    try:
        return _jax.batched_device_put(
            aval, _sharding(device), [array], [device], True, False, _COPY, True
        )
    except _jax.JaxRuntimeError as error:
        raise _failure(error, f"placing {spell(ir_dtype(array.dtype), array.shape)}") from error


class Placer:
    """`put` for arrays of one kind: what it takes for every batch is decided once."""

    def __init__(self, entry: TensorEntry, device: Device) -> None:
        self._entry = entry
        self._device = device
        self._dtype = np_dtype(entry.dtype)
        self._shape = tuple(entry.shape)
        self._aval = _entry_aval(entry)
        self._sharding = _sharding(device)
        self._devices = [device]

    def __call__(self, x: np.ndarray) -> DeviceArray:
        """A copy of `x`, which has as many elements as the entry, in its shape and dtype."""
        array = x if x.shape == self._shape else x.reshape(self._shape)
        if array.dtype != self._dtype:
            return put(array, self._device, self._entry.dtype)
        try:
            return _jax.batched_device_put(
                self._aval, self._sharding, [array], self._devices, True, False, _COPY, True
            )
        except _jax.JaxRuntimeError as error:
            raise _failure(error, f"placing {self._entry.name}") from error


def _placeable(array: np.ndarray, dtype: str | None) -> np.ndarray:
    wanted = native(array.dtype) if dtype is None else np_dtype(dtype)
    if not has_ir_dtype(array.dtype):
        ir_dtype(array.dtype)
    if array.dtype == wanted:
        return array
    try:
        return array.astype(wanted, casting="same_kind")
    except TypeError as error:
        raise DeviceError(
            32,
            f"an array of {array.dtype} can't be placed as {dtype}",
            help="convert it first, stating how to round",
        ) from error


def start_read(array: DeviceArray) -> None:
    """Starts copying `array` to the host, so that a later `read` finds it there."""
    array.copy_to_host_async()


def read(array: DeviceArray) -> np.ndarray:
    """A fresh host copy of `array`, which the caller owns; waits for it.

    Raises E-DEVICE-025 when it was deleted, E-DEVICE-029 when the program that makes it failed.
    """
    if array.is_deleted():
        raise DeviceError(25, "reading an array that was deleted or donated")
    try:
        return np.array(array, copy=True)
    except _jax.JaxRuntimeError as error:
        raise _failure(error, "reading a result") from error


def wait(arrays: Iterable[DeviceArray]) -> None:
    """Returns when all of `arrays` are computed; raises E-DEVICE-029 when one can't be."""
    try:
        jax.block_until_ready(list(arrays))
    except _jax.JaxRuntimeError as error:
        raise _failure(error, "waiting for a result") from error


def delete(array: DeviceArray) -> None:
    """Gives `array`'s memory back; a second call does nothing."""
    if not array.is_deleted():
        array.delete()


def _failure(error: Exception, doing: str) -> DeviceError:
    number = 30 if "RESOURCE_EXHAUSTED" in str(error) else 29
    return DeviceError(number, f"{doing} failed: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ------------------------------------------------------------------------------ executables


_AVAL, _SHARDING = attrgetter("aval"), attrgetter("sharding")


class Executable:
    """A compiled program on one device, called with buffers in the order of its manifest."""

    def __init__(
        self,
        loaded: Any,
        device: Device,
        args: Sequence[TensorEntry],
        results: Sequence[TensorEntry],
        donate: Sequence[Sequence[int]] = (),
    ) -> None:
        self._loaded = loaded
        self._execute = loaded.execute_sharded
        self.device = device
        self.args = tuple(args)
        self.results = tuple(results)
        self.donate = tuple((arg, result) for arg, result in donate)
        self._donated = frozenset(arg for arg, _ in self.donate)
        sharding = _sharding(device)
        self._avals = [_entry_aval(arg) for arg in self.args]
        self._shardings = None if _only_device() else [sharding] * len(self.args)
        self._handlers = [
            _jax.array_result_handler(_entry_aval(result), sharding, True, **UNCHECKED)
            for result in self.results
        ]

    def __call__(self, buffers: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Enqueues one run and returns its results at once; donated buffers are deleted.

        Raises E-DEVICE-022 to -026 and -031 before anything runs, naming the argument, with every
        buffer still alive.
        """
        self._check(buffers)
        try:
            results = self._execute(buffers).consume_with_handlers(self._handlers)
        except (_jax.JaxRuntimeError, ValueError) as error:
            raise _failure(error, "running a program") from error
        for index in self._donated:
            # A buffer that somebody still views from numpy is copied instead of reused.
            if not buffers[index].is_deleted():
                buffers[index].delete()
        return results

    def _check(self, buffers: Sequence[DeviceArray]) -> None:
        # Lists of interned objects compare by pointer, in C: about 0.2 us per argument.
        try:
            sound = (
                list(map(_AVAL, buffers)) == self._avals
                and (self._shardings is None or list(map(_SHARDING, buffers)) == self._shardings)
                and not any(map(_ArrayImpl.is_deleted, buffers))
                and len(set(map(id, buffers))) == len(buffers)
            )
        except (AttributeError, TypeError):  # something that is no device array: named below
            sound = False
        if not sound:
            self._explain(buffers)

    def _explain(self, buffers: Sequence[DeviceArray]) -> None:
        """The slow path: raises the first thing that is wrong, if anything is."""
        if len(buffers) != len(self.args):
            raise DeviceError(22, f"{len(self.args)} arguments expected, {len(buffers)} found")
        for entry, buffer in zip(self.args, buffers, strict=True):
            self._explain_one(entry, buffer)
        self._explain_sharing(buffers)

    def _explain_one(self, entry: TensorEntry, buffer: DeviceArray) -> None:
        where = f"argument {entry.name!r}"
        if not isinstance(buffer, _ArrayImpl):
            found = type(buffer).__name__
            raise DeviceError(31, f"a device array expected, {found} found", where=where)
        if buffer.is_deleted():
            raise DeviceError(25, "the array was deleted or donated", where=where)
        expected = spell(entry.dtype, tuple(entry.shape))
        found = _spell_array(buffer)
        if found != expected:
            raise DeviceError(23, f"{expected} expected, {found} found", where=where)
        if buffer.devices() != {self.device}:
            found = ", ".join(map(str, buffer.devices()))
            raise DeviceError(24, f"on {self.device} expected, on {found} found", where=where)

    def _explain_sharing(self, buffers: Sequence[DeviceArray]) -> None:
        first: dict[int, int] = {}
        for index, buffer in enumerate(buffers):
            other = first.setdefault(id(buffer), index)
            if other != index and not self._donated.isdisjoint((other, index)):
                names = f"{self.args[other].name!r} and {self.args[index].name!r}"
                raise DeviceError(
                    26,
                    f"one buffer is passed for {names}, and at least one of them is donated",
                    help="copy the buffer for one of the two",
                )

    def bind(
        self,
        args: Sequence[TensorEntry],
        results: Sequence[TensorEntry],
        donate: Sequence[Sequence[int]],
    ) -> Executable:
        """The same machine code under other names of its arguments and results."""
        if self.args == tuple(args) and self.results == tuple(results):
            return self
        return Executable(self._loaded, self.device, args, results, donate)

    def serialize(self) -> bytes:
        """The executable for `deserialize`, on a machine of the same `fingerprint`.

        Raises E-DEVICE-028 where the backend can't store executables.
        """
        try:
            return self._loaded.client.serialize_executable(self._loaded)
        except _jax.JaxRuntimeError as error:
            raise DeviceError(28, f"storing an executable: {_first_line(error)}") from error

    def memory(self) -> Memory | None:
        """What a call takes, or None where the backend doesn't say."""
        try:
            stats = self._loaded.get_compiled_memory_stats()
        except _jax.JaxRuntimeError:  # not every plugin implements it
            return None
        return Memory(
            arguments=stats.argument_size_in_bytes,
            results=stats.output_size_in_bytes,
            aliased=stats.alias_size_in_bytes,
            temporaries=stats.temp_size_in_bytes,
            peak=stats.peak_memory_in_bytes,
        )


@functools.cache
def _only_device() -> bool:
    """Whether this process has one device in all: an array can be on no other."""
    return len(devices()) == 1 and len(platforms()) == 1


def _entry_aval(entry: TensorEntry) -> ShapedArray:
    return _aval(np_dtype(entry.dtype), tuple(entry.shape))


def _spell_array(array: DeviceArray) -> str:
    try:
        return spell(ir_dtype(array.dtype), array.shape)
    except DataError:
        return spell(str(array.dtype), array.shape)


def compile(
    artifact: bytes | str,
    device: Device,
    args: Sequence[TensorEntry],
    results: Sequence[TensorEntry],
    *,
    donate: Sequence[Sequence[int]] = (),
    poll: Callable[[], None] | None = None,
) -> Executable:
    """Compiles StableHLO (a portable artifact, bytecode or text) for `device`.

    `donate` lists (argument, result) pairs the program aliases. Ctrl-C works meanwhile, and `poll`
    is called every 0.05 s on the calling thread: what it raises ends the wait. Raises E-DEVICE-027
    when the backend refuses the program, E-DEVICE-030 when it needs too much memory.
    """
    code = artifact.encode() if isinstance(artifact, str) else artifact
    where = xla_client.DeviceList((device,))
    try:
        loaded = interruptible(
            lambda: device.client.compile_and_load(code, where, _options(device)), poll
        )
    except _jax.JaxRuntimeError as error:
        number = 30 if "RESOURCE_EXHAUSTED" in str(error) else 27
        raise DeviceError(number, f"compiling failed: {_first_line(error)}") from error
    return Executable(loaded, device, args, results, donate)


def deserialize(
    serialized: bytes,
    device: Device,
    args: Sequence[TensorEntry],
    results: Sequence[TensorEntry],
    *,
    donate: Sequence[Sequence[int]] = (),
) -> Executable:
    """The executable `Executable.serialize` wrote; check the digest of the bytes first.

    The bytes hold machine code. Damaged ones may load and compute something else, or kill the
    process; of those the backend itself refuses, E-DEVICE-028 is raised.
    """
    where = xla_client.DeviceList((device,))
    try:
        loaded = device.client.deserialize_executable(serialized, where, _options(device))
    except _jax.JaxRuntimeError as error:
        raise DeviceError(28, f"a stored executable: {_first_line(error)}") from error
    return Executable(loaded, device, args, results, donate)


def _options(device: Device) -> Any:
    options = xla_client.CompileOptions()
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    return options


# -------------------------------------------------------------------------------- the machine


def fingerprint(device: Device) -> dict[str, str]:
    """All that decides whether an executable compiled elsewhere runs here, by name.

    On a CPU with fewer features a stored executable dies of an illegal instruction, so the
    features are part of it.
    """
    return {
        "platform": device.platform,
        "platform version": device.client.platform_version,
        "device kind": device.device_kind,
        "topology": _topology(device),
        "jaxlib": jaxlib.version.__version__,
        "cpu features": _cpu_features(),
        "compile options": hashlib.sha256(_options(device).SerializeAsString()).hexdigest(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def _topology(device: Device) -> str:
    try:
        return f"{xla_client.get_topology_for_devices([device]).fingerprint():016x}"
    except _jax.JaxRuntimeError:  # not every plugin describes its topology
        return ""


@functools.cache
def _cpu_features() -> str:
    """A digest of the instruction sets; on other systems than Linux the processor's name."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return f"{host_platform.machine()} {host_platform.processor()}"
    keys = ("flags", "Features", "isa", "model name", "CPU part")
    found = sorted(
        {line.strip() for line in info.read_text().splitlines() if line.startswith(keys)}
    )
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()
    return f"{host_platform.machine()} {digest[:16]}"


def tune_malloc() -> bool:
    """Keeps large temporaries in the heap from one run to the next; True where it could.

    With glibc's thresholds a step with more than 32 MB of temporaries maps and unmaps them each
    time, at some 12,000 page faults a step; measured 1.3 to 1.4 times faster without.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    trim_threshold, mmap_threshold = -1, -3
    return bool(mallopt(mmap_threshold, 1 << 30)) and bool(mallopt(trim_threshold, (1 << 31) - 1))
