"""A step that failed, on disk: all it takes to run it again.

`replay/step-<n>/` in the run directory holds the state before the step, its batch, and
`step.json`. It is no checkpoint, and nothing resumes from it.

`step.json`, format 1: `format`, `run_id`, `bundle` (digest), `program` (by name in the manifest),
`step`, `epoch`, `seed`, `scalars` by name (one that is not finite is `{"repr": "nan"}`), `mask`
(a truth value per diagnostic; null for the plain program), `error` (`code`, `what`, `where`,
`also`) and `files` (size and sha256).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from nitro_runtime.durable import fsync_directory, temp_name, write_file
from nitro_runtime.errors import CheckpointError, NitroError, RunError
from nitro_runtime.saving import loose, strict
from nitro_runtime.snapshot import meta_bytes, read_arrays, write_arrays

FOLDER = "replay"
FORMAT = 1
STATE, BATCH, STEP = "state.safetensors", "batch.safetensors", "step.json"


@dataclass(frozen=True, repr=False)
class Replay:
    """A failed step.

    state: `param/<path>`, `slot/...`, `state/<path>`, `device/<leaf>`, as in a checkpoint. batch:
    by field, in the shape that the train program takes. record: the keys of `step.json`.
    """

    state: Mapping[str, np.ndarray]
    batch: Mapping[str, np.ndarray]
    record: Mapping[str, Any]


def described(error: NitroError) -> dict[str, Any]:
    """What `step.json` keeps of an error."""
    return {
        "code": error.code,
        "what": error.what,
        "where": error.where,
        "also": list(error.also),
    }


def write(run_dir: Path, replay: Replay) -> Path:
    """Writes `replay` into a directory of its own, whole or not at all, and gives its path.

    It takes the place of an older one of its run; another run's of the same step stays, and this
    one's name then has the run's id. OSError and TensorFileError say why it can't be written.
    """
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    run_id, step = replay.record["run_id"], replay.record["step"]
    temp = folder / temp_name(f"step-{step}")
    temp.mkdir()
    try:
        files = {
            STATE: write_arrays(temp / STATE, replay.state),
            BATCH: write_arrays(temp / BATCH, replay.batch),
        }
        scalars = strict(replay.record["scalars"])
        record = {**replay.record, "format": FORMAT, "scalars": scalars, "files": files}
        write_file(temp / STEP, meta_bytes(record))
        fsync_directory(temp)
        older = [path for path in folder.glob("step-*") if _run_of(path) == run_id]
        for path in older:
            shutil.rmtree(path)
        target = folder / f"step-{step}"
        if target.exists():
            target = folder / f"step-{step}-{run_id}"
        temp.rename(target)
        fsync_directory(folder)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return target


def _run_of(path: Path) -> str | None:
    try:
        return _record(path)["run_id"]
    except RunError:  # nobody's: it is left alone
        return None


def newest(run_dir: str | Path) -> Path:
    """The replay in a run directory, of its latest run where several left one.

    E-RUN-008 when there is none, E-RUN-007 when none of those there can be read.
    """
    folder = Path(run_dir) / FOLDER
    there = sorted(folder.glob("step-*"))
    if not there:
        raise RunError(
            8,
            f"{run_dir} has no replay of a failed step",
            where=str(folder),
            help="a training step at which a guard or the finite guard stops the run leaves one; "
            "name the directory of such a run: --run-dir D",
        )
    runs = {path: _run_of(path) for path in there}
    return max(there, key=lambda path: runs[path] or "")


def read(path: str | Path) -> Replay:
    """The replay at `path`, every byte checked; E-RUN-007 for what is none, or is damaged."""
    directory = Path(path)
    record = _record(directory)
    try:
        state, batch = (
            read_arrays(directory, name, record["files"][name]) for name in (STATE, BATCH)
        )
    except (CheckpointError, KeyError) as error:
        raise _unreadable(directory, error) from error
    return Replay(state, batch, {**record, "scalars": loose(record["scalars"])})


def _record(directory: Path) -> dict[str, Any]:
    try:
        record = json.loads((directory / STEP).read_bytes())
    except (OSError, ValueError) as error:
        raise _unreadable(directory, error) from error
    if not isinstance(record, dict) or cast("dict[str, Any]", record).get("format") != FORMAT:
        raise _unreadable(directory, f"{STEP} is not of format {FORMAT}")
    return cast("dict[str, Any]", record)


def _unreadable(directory: Path, why: object) -> RunError:
    reason = why.what if isinstance(why, NitroError) else why
    return RunError(7, f"no replay can be read at {directory}: {reason}", where=str(directory))
