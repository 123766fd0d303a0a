"""A bundle, opened: every check before anything of it is parsed or run.

Each file is read once into memory, so that a change on disk while the bundle is in use changes
nothing. No Python of a bundle is ever imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from nitro_runtime import checks
from nitro_runtime.directory import check_names, list_files, read_file
from nitro_runtime.errors import BundleError
from nitro_runtime.findings import MANIFEST, Finding, refuse
from nitro_runtime.manifest import MAJOR, Manifest, ProgramEntry
from nitro_runtime.references import check_references
from nitro_runtime.tensors import read_tensors


class Bundle:
    """A checked bundle. `path` is its directory, None in memory; `digest` its identity."""

    def __init__(self, manifest: Manifest, files: Mapping[str, bytes], path: Path | None) -> None:
        self.manifest = manifest
        self.path = path
        self._files = files

    @classmethod
    def open(cls, path: Path | str) -> Bundle:
        """Reads and checks (1-12) the bundle in directory `path`.

        Raises:
            BundleError: E-BUNDLE-0NN, with every failure of check NN, the first that failed.
        """
        root = Path(path)
        sizes = list_files(root)
        data = read_file(root, MANIFEST, sizes[MANIFEST])
        manifest = _read_manifest(data)
        refuse(5, checks.check_listing(sizes, manifest.files))
        files = {MANIFEST: data, **_read_files(root, manifest, sizes)}
        _check_parts(manifest, files)
        return cls(manifest, files, root)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, trusted: bool = False) -> Bundle:
        """A bundle in memory, checked (1-12) like one on disk.

        `trusted` files were just made in this process: hashes and programs are not looked at again.

        Raises:
            BundleError: as `open`.
        """
        refuse(1, check_names(list(files)))
        if MANIFEST not in files:
            refuse(2, [Finding(MANIFEST, "", "a manifest", "none")])
        manifest = _read_manifest(files[MANIFEST])
        refuse(5, checks.check_listing(files, manifest.files))
        if trusted:
            refuse(7, check_references(manifest))
            refuse(11, checks.check_state(manifest))
            refuse(12, checks.check_weights(manifest, files))
            return cls(manifest, dict(files), None)
        refuse(
            6, [f for n, e in manifest.files.items() for f in checks.check_content(n, files[n], e)]
        )
        _check_parts(manifest, files)
        return cls(manifest, dict(files), None)

    @property
    def digest(self) -> str:
        return self.manifest.digest

    def names(self) -> list[str]:
        """Every file's name, sorted, the manifest included."""
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        """The bytes of file `name`.

        Raises:
            BundleError: E-BUNDLE-020 when there is no such file.
        """
        if name not in self._files:
            raise _missing("file", name, list(self._files))
        return self._files[name]

    def program(self, name: str) -> ProgramEntry:
        """The manifest's entry of program `name`.

        Raises:
            BundleError: E-BUNDLE-020 when there is no such program.
        """
        if name not in self.manifest.programs:
            raise _missing("program", name, list(self.manifest.programs))
        return self.manifest.programs[name]

    def artifact(self, name: str) -> bytes:
        """The portable artifact of program `name`; raises as `program`."""
        return self.read(self.program(name).file)

    def arrays(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """The tensors of file `name`, as read-only arrays; none when the bundle lacks the file."""
        return read_tensors(self._files[name]) if name in self._files else {}


def verify(path: Path | str, run: bool = False, *, backend: str | None = None) -> list[str]:
    """Lines that say what was checked of the bundle at `path`, and that it is good.

    `run` also compiles every program and compares it with its recording (13-15), on `backend`.

    Raises:
        BundleError: a check failed. DeviceError: this machine can't run the bundle (`run` only).
    """
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    size = sum(entry.size for entry in manifest.files.values())
    lines = [
        f"{path}: a bundle of {manifest.name}, format {MAJOR}.{manifest.format.minor}",
        f"digest {manifest.digest}",
        f"{len(manifest.files)} files, {size} bytes: names, sizes and hashes agree",
        f"{len(manifest.programs)} programs: {', '.join(sorted(manifest.programs))}",
        "their arguments, results, donation and state agree with the manifest",
        "weights agree with the groups",
    ]
    if run:
        from nitro_runtime.selftest import (
            self_test,
        )  # it needs a device, which the other checks do not

        lines += self_test(bundle, backend)
    return [*lines, "good"]


def _read_manifest(data: bytes) -> Manifest:
    """Checks 2-4; and the names a manifest lists, which are check 1's."""
    value, findings = checks.parse_manifest(data)
    refuse(2, findings)
    refuse(3, checks.check_format(value))
    listed = value.get("files")
    refuse(1, check_names(list(listed), "$.files") if isinstance(listed, dict) else [])
    manifest, findings = checks.read_manifest(data, value)
    refuse(4, findings)
    assert manifest is not None, "a manifest without findings was read"
    return manifest


def _read_files(root: Path, manifest: Manifest, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Check 6. A file of another size is not read."""
    files: dict[str, bytes] = {}
    findings: list[Finding] = []
    for name, entry in manifest.files.items():
        if sizes[name] != entry.size:
            found = f"{sizes[name]} bytes"
            findings.append(Finding(name, "", f"{entry.size} bytes", found))
            continue
        files[name] = read_file(root, name, entry.size)
        findings += checks.check_content(name, files[name], entry)
    refuse(6, findings)
    return files


def _check_parts(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Checks 7-12, for files whose hashes are right."""
    refuse(7, check_references(manifest))
    refuse(8, checks.check_headers(manifest, files))
    inspections, findings = checks.check_programs(manifest, files)
    refuse(9, findings)
    refuse(10, checks.check_signatures(manifest, inspections))
    refuse(11, checks.check_state(manifest))
    refuse(12, checks.check_weights(manifest, files))


def _missing(what: str, name: str, known: list[str]) -> BundleError:
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
    return BundleError(20, f"the bundle has no {what} {name!r}", help=hint)
