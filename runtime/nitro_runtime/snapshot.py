"""A checkpoint in memory and on disk: arrays by name, and plain JSON about them.

On disk it is a directory of `state.safetensors` and `meta.json`; the latter holds size and sha256
of the former, so a damaged one is found before a tensor is looked at.

Format versions, newest first:

    1.0  2026-10-01  The first: one parameter group, epoch boundaries.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from nitro_runtime.durable import fsync_directory, write_file
from nitro_runtime.errors import CheckpointError
from nitro_runtime.tensors import TensorFileError, read_tensors, write_tensors

MAJOR, MINOR = 1, 0
TENSORS = "state.safetensors"
META = "meta.json"


@dataclass(frozen=True, repr=False)
class Snapshot:
    """Host arrays by name (`param/<path>`, `state/<path>`, `slot/<name>[/<path>]`, `device/<leaf>`)
    and the keys of `meta.json`."""

    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]

    def __repr__(self) -> str:
        size = sum(array.nbytes for array in self.arrays.values())
        epoch, step = self.meta.get("epoch"), self.meta.get("step")
        return f"Snapshot(epoch={epoch}, step={step}, {len(self.arrays)} arrays, {size} bytes)"


def write_directory(directory: Path, snapshot: Snapshot) -> None:
    """Writes `snapshot` into the fresh `directory`, durable; the caller renames it into place."""
    directory.mkdir(parents=True)
    files = {TENSORS: write_arrays(directory / TENSORS, snapshot.arrays)}
    write_file(directory / META, meta_bytes({**snapshot.meta, "files": files}))
    fsync_directory(directory)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Writes a tensor file, durable, and gives its size and digest."""
    content = write_tensors(arrays)
    write_file(path, content)
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def meta_bytes(meta: Mapping[str, Any]) -> bytes:
    """`meta.json`'s text."""
    return (json.dumps(meta, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_meta(directory: Path) -> dict[str, Any]:
    """The checked `meta.json` of a checkpoint, opening no tensor.

    E-CKPT-001 when there is none, -002 when it can't be read, -003 for another format.
    """
    if not (directory / META).is_file():
        raise CheckpointError(
            1, f"no checkpoint at {directory}: it has no {META}", where=str(directory)
        )
    try:
        meta = json.loads((directory / META).read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(directory, f"{META} can't be read: {error}") from error
    if not isinstance(meta, dict) or "format" not in meta or "files" not in meta:
        raise _damaged(directory, f"{META} lacks its keys")
    known = cast("dict[str, Any]", meta)
    major = known["format"].get("major") if isinstance(known["format"], dict) else known["format"]
    if major != MAJOR:
        raise CheckpointError(
            3,
            f"{directory} has format {major}, this runtime reads {MAJOR}.x",
            where=str(directory),
            help="use the nitroc that wrote it, or a newer one",
        )
    return known


def read_directory(directory: Path) -> Snapshot:
    """The checkpoint at `directory`, every byte checked; errors as `read_meta`."""
    meta = read_meta(directory)
    arrays: dict[str, np.ndarray] = {}
    for name, entry in meta["files"].items():
        arrays.update(read_arrays(directory, name, entry))
    return Snapshot(arrays, meta)


def read_arrays(directory: Path, name: str, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a tensor file of `directory`, checked against its size and digest.

    E-CKPT-002 for one that is not what its entry says.
    """
    if Path(name).name != name:
        raise _damaged(directory, f"{name!r} leads out of the directory")
    try:
        content = (directory / name).read_bytes()
    except OSError as error:
        raise _damaged(directory, f"{name} can't be read: {error.strerror}") from error
    found = hashlib.sha256(content).hexdigest()
    if len(content) != entry["size"] or found != entry["sha256"]:
        raise _damaged(
            directory,
            f"{name} has {len(content)} bytes and digest {found[:12]}, expected {entry['size']} "
            f"and {str(entry['sha256'])[:12]}",
        )
    try:
        return read_tensors(content)
    except TensorFileError as error:
        raise _damaged(directory, f"{name}: {error}") from error


def _damaged(directory: Path, what: str) -> CheckpointError:
    return CheckpointError(
        2, f"checkpoint {directory.name} is damaged: {what}", where=str(directory)
    )


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says of itself; `metrics` is its epoch's row."""

    epoch: int
    step: int
    metrics: dict[str, Any]
    preset: str | None
    run_id: str
    run_url: str | None
    stop_reason: str | None
    derived: dict[str, Any] | None


def checkpoint_info(path: str | Path) -> CheckpointInfo:
    """What the checkpoint at `path` says of itself; no tensor is opened."""
    meta = read_meta(Path(path))
    rows = meta.get("metrics") or [{}]
    logger = meta.get("logger")
    first = cast("Any", logger[0] if isinstance(logger, list) and logger else logger)
    return CheckpointInfo(
        epoch=meta["epoch"],
        step=meta["step"],
        metrics=dict(rows[-1]),
        preset=meta.get("preset"),
        run_id=meta["run_id"],
        run_url=first.get("run_url") if isinstance(first, dict) else None,
        stop_reason=meta.get("stop_reason"),
        derived=meta.get("derived"),
    )
