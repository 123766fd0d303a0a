"""What a loader's check found, and the one error that reports all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nitro_runtime.errors import CODES, BundleError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Finding:
    """One failure of a check.

    file: relative name. path: JSON path in it, or "". action: what to do; "" for the code's own.
    """

    file: str
    path: str
    expected: str
    found: str
    action: str = ""

    @property
    def text(self) -> str:
        """`$.name: expected a string, found 3`, without the file."""
        said = f"expected {self.expected}, found {self.found}"
        return f"{self.path}: {said}" if self.path else said


def refuse(check: int, findings: Sequence[Finding]) -> None:
    """Raises E-BUNDLE-0NN with every finding of check NN; returns when there is none."""
    if not findings:
        return
    first, *rest = findings
    raise BundleError(
        check,
        first.text,
        where=first.file,
        help=first.action or CODES[f"E-BUNDLE-{check:03d}"].fix,
        also=[f"{finding.file}: {finding.text}" for finding in rest],
    )
