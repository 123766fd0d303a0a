"""A bundle's programs, compiled through the process's cache and held against their recordings."""

from __future__ import annotations

from collections.abc import Callable

from nitro_runtime import cache, pjrt
from nitro_runtime.artifact import location_free_text
from nitro_runtime.bundle import Bundle
from nitro_runtime.host import HostHooks
from nitro_runtime.ingredients import ingredients
from nitro_runtime.manifest import ProgramEntry
from nitro_runtime.selftest import check_golden, fingerprint_text, on_host

Compiler = Callable[[str, ProgramEntry, Callable[[], None] | None], pjrt.Executable]
"""A program by name and entry, and what to call while it compiles."""


def compiler(
    bundle: Bundle, device: pjrt.Device, host: HostHooks, say: Callable[[str], None]
) -> Compiler:
    """Compiles a program of `bundle` by name; the cache explains each miss by `host.describe()`.

    A program of a bundle on disk that has a recording is run on it once: E-BUNDLE-015 when it does
    not compute what it did.
    """

    def compile_program(
        name: str, entry: ProgramEntry, poll: Callable[[], None] | None
    ) -> pjrt.Executable:
        artifact = bundle.artifact(name)
        program = cache.Program(
            location_free_text(artifact),
            artifact,
            ingredients(bundle.manifest, name, entry, host.describe()),
            entry.args,
            entry.results,
            entry.donate,
        )
        executable = cache.CACHE.get(program, device, say=say, poll=poll)
        if entry.golden is not None and entry.role != "train_step" and bundle.path is not None:
            check_golden(bundle, name, on_host(executable), fingerprint_text(device))
        return executable

    return compile_program
