"""A bundle's programs, compiled through the process's cache."""

from __future__ import annotations

from collections.abc import Callable

from nitro_runtime import cache, pjrt
from nitro_runtime.artifact import location_free_text
from nitro_runtime.bundle import Bundle
from nitro_runtime.host import HostHooks
from nitro_runtime.ingredients import ingredients
from nitro_runtime.manifest import ProgramEntry


def compiler(
    bundle: Bundle, device: pjrt.Device, host: HostHooks, say: Callable[[str], None]
) -> Callable[[str, ProgramEntry], pjrt.Executable]:
    """Compiles a program of `bundle` by name; the cache explains each miss by `host.describe()`."""

    def compile_program(name: str, entry: ProgramEntry) -> pjrt.Executable:
        artifact = bundle.artifact(name)
        program = cache.Program(
            location_free_text(artifact),
            artifact,
            ingredients(bundle.manifest, name, entry, host.describe()),
            entry.args,
            entry.results,
            entry.donate,
        )
        return cache.CACHE.get(program, device, say=say)

    return compile_program
