"""Bundles, written: parts of a compilation become files, files become a directory."""

from __future__ import annotations

from nitroc.bundle.assemble import ProgramPart, assemble
from nitroc.bundle.values import recorded
from nitroc.bundle.writer import write_bundle

__all__ = ["ProgramPart", "assemble", "recorded", "write_bundle"]
