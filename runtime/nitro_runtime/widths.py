"""Which programs evaluate and predict how many rows."""

from __future__ import annotations

from dataclasses import dataclass

from nitro_runtime.errors import DataError
from nitro_runtime.manifest import Manifest


@dataclass(frozen=True)
class Plan:
    """How a batch of `rows` runs: forward at `width` (filled when it is more), then reduce."""

    rows: int
    width: int
    forward: str
    reduce: str


class Widths:
    """The forward programs of a bundle by width, and whether a short batch is filled up.

    It isn't where forward mixes rows, nor, when its report is `counted`, where it holds marks:
    they would count the rows that fill.
    """

    def __init__(self, manifest: Manifest, *, counted: bool) -> None:
        self._manifest = manifest
        self._forward = {
            program.dims["width"]: name
            for name, program in manifest.programs.items()
            if program.role == "forward"
        }
        marked = any(manifest.programs[name].report for name in self._forward.values())
        self._unfilled = None
        if manifest.batching.row_independent is not True:
            self._unfilled = "it mixes rows"
        elif counted and marked:
            self._unfilled = "it holds marks"

    @property
    def all(self) -> list[int]:
        """The compiled widths, narrowest first."""
        return sorted(self._forward)

    def of_split(self, split: str) -> int | None:
        """The width the split's batches were seen to have at build."""
        entry = self._manifest.batch_schema.get(split)
        return None if entry is None or entry.width not in self._forward else entry.width

    def predict_width(self) -> int:
        """The one width predictions run at, so that a row's bits don't depend on its company."""
        if not self._forward:
            raise DataError(61, "the bundle holds no forward program", where="programs")
        return max(self._forward)

    def plan(self, rows: int, width: int) -> Plan:
        """How `rows` rows of a split of `width` run; E-DATA-061 when no program can."""
        if rows < width and self._unfilled is not None:
            width = rows
        forward = self._forward.get(width)
        if forward is None or rows > width:
            raise DataError(
                61,
                f"a batch of {rows} rows, and forward is compiled for {self._listing()}"
                + ("" if self._unfilled is None else f" ({self._unfilled}, so none is filled up)"),
                where="batch",
                help="build with data whose batches have these rows",
                step_found=True,
            )
        return Plan(rows, width, forward, f"reduce.b{width}.r{rows}")

    def _listing(self) -> str:
        return ", ".join(map(str, self.all)) or "no width"
