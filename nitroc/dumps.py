"""Every stage of a compilation as files: `NN-<pass>.nir`, `functions/<digest>.mlir`, StableHLO.

Any stage can be gone on from, without the experiment's Python: the text, the functions beside it,
arrays (hoisted constants, Device fields) and the values of the scalars are all that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nitro_dialect import Module, print_module
from nitro_runtime import canonical
from nitro_runtime.findings import MANIFEST
from nitro_runtime.manifest import ScheduleEntry
from nitro_runtime.records import Record
from nitroc.emit.program import program_text
from nitroc.errors import BuildError
from nitroc.lowering import Programs

FUNCTIONS = "functions"
CONSTANTS = "constants.safetensors"
RECORDED = "recorded.json"
"""A `Recorded`: what the manifest holds and no stage says."""


@dataclass(frozen=True)
class Recorded(Record):
    """row_independent: what was found by running forward. schedules: the scalars' values."""

    row_independent: bool | None
    schedules: dict[str, ScheduleEntry]


class Dump:
    """Collects the stages of one compilation and writes them under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stages: dict[str, str] = {}

    def stage(self, number: int, name: str, module: Module) -> None:
        """Remembers one stage; a second compilation of the same build replaces the first."""
        self._stages[f"{number:02d}-{name}.nir"] = print_module(module, locations=True)

    def finish(self, programs: Programs, files: Mapping[str, bytes]) -> None:
        """Writes the stages and what they need; E-BUILD-087 when it can't.

        files: of the bundle that the stages became.
        """
        try:
            (self.root / FUNCTIONS).mkdir(parents=True, exist_ok=True)
            for name, text in self._stages.items():
                (self.root / name).write_text(text, encoding="utf-8")
            for digest, artifact in programs.functions.items():
                text = program_text(artifact, locations=True)
                (self.root / FUNCTIONS / f"{digest}.mlir").write_text(text, encoding="utf-8")
            for name, emitted in programs.emitted.items():
                text = program_text(emitted.artifact, locations=True)
                (self.root / f"{name}.stablehlo.mlir").write_text(text, encoding="utf-8")
            manifest = canonical.parse(files[MANIFEST])
            recorded = {
                "row_independent": manifest["batching"]["row_independent"],
                "schedules": manifest["schedules"],
            }
            (self.root / RECORDED).write_bytes(canonical.dump(recorded))
            if f"weights/{CONSTANTS}" in files:
                (self.root / CONSTANTS).write_bytes(files[f"weights/{CONSTANTS}"])
        except OSError as error:
            raise BuildError(
                87, f"the stages can't be written: {error}", where=str(self.root),
                help="name a directory that can be written: --dump-ir DIR",
            ) from error  # fmt: skip
