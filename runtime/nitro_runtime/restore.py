"""Continuing a run, or starting one from another's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nitro_runtime.checkpoints import Entry, read_manifest
from nitro_runtime.errors import CheckpointError, near
from nitro_runtime.manifest import Manifest
from nitro_runtime.snapshot import META, Snapshot, read_directory

DONE = ("completed", "early_stop", "max_steps")
"""Reasons after which a resume has nothing to do, unless a limit grew."""


@dataclass(frozen=True)
class Restored:
    """A record to continue: its run goes on under its own id, or a new one forks from it."""

    record: Snapshot
    name: str
    forks: bool


def find(
    resume: bool | str | Path, checkpointer: Any, run_dir: Path, say: Callable[[str], None]
) -> Restored | None:
    """The record that `resume` names; None for a new run.

    E-CKPT-001 when there is none to continue, -006 without a checkpointer.
    """
    if resume is False:
        return None
    if checkpointer is None:
        raise CheckpointError(
            6, "resume is given, and the checkpointer is off", where="option checkpointer"
        )
    rows = cast("list[Entry]", checkpointer.entries())
    wanted = "latest" if resume is True else str(resume)
    if wanted == "auto" and not rows:
        say(f"resume=auto: no checkpoint in {run_dir}, a new run starts")
        return None
    if wanted in ("auto", "latest"):
        return _newest(_of_newest_run(rows, run_dir), checkpointer, say)
    if wanted == "best":
        return _best(_of_newest_run(rows, run_dir), checkpointer, say)
    own = [row for row in rows if row["run_id"] == wanted]
    if own:
        return _newest(own, checkpointer, say)
    return _from_path(wanted, rows, run_dir)


def _of_newest_run(rows: Sequence[Entry], run_dir: Path) -> list[Entry]:
    if not rows:
        raise CheckpointError(
            1,
            f"no checkpoint in {run_dir}",
            where="option resume",
            help="train first, or say resume=auto to start a new run where there is none",
        )
    newest = max(row["run_id"] for row in rows)
    return [row for row in rows if row["run_id"] == newest]


def _newest(rows: Sequence[Entry], checkpointer: Any, say: Callable[[str], None]) -> Restored:
    ordered = sorted(rows, key=lambda row: row["step"], reverse=True)
    return _first_good(ordered, checkpointer, say, forks=False)


def _best(rows: Sequence[Entry], checkpointer: Any, say: Callable[[str], None]) -> Restored:
    scored = [row for row in rows if row["score"] is not None]
    if not scored:
        raise CheckpointError(
            1, "no checkpoint of the newest run has a score", where="option resume"
        )
    return _first_good(rank(scored), checkpointer, say, forks=True)


def rank(rows: Sequence[Entry]) -> list[Entry]:
    """Scored entries, best first; of equal ones the older."""
    return sorted(
        rows, key=lambda r: (r["score"] if r["mode"] == "min" else -r["score"], r["step"])
    )


def _first_good(
    rows: Sequence[Entry], checkpointer: Any, say: Callable[[str], None], *, forks: bool
) -> Restored:
    failures: list[str] = []
    for row in rows:
        try:
            record = cast("Snapshot", checkpointer.load(row["file"]))
        except CheckpointError as error:
            if not error.code.endswith(("001", "002")):
                raise
            failures.append(error.what)
            say(f"{error.what}; the one before it is used")
            continue
        return Restored(record, row["file"], forks)
    raise CheckpointError(2, "no checkpoint of the run can be read", also=failures)


def _from_path(wanted: str, rows: Sequence[Entry], run_dir: Path) -> Restored:
    path = Path(wanted)
    if not (path / META).is_file() and (run_dir / wanted / META).is_file():
        path = run_dir / wanted
    if not (path / META).is_file():
        ids = sorted({row["run_id"] for row in rows})
        raise CheckpointError(
            1,
            f"resume={wanted!r} names neither a run of {run_dir} nor a checkpoint"
            f"{near(wanted, ids)}",
            where="option resume",
            help=f"runs here: {', '.join(ids) or 'none'}; or say auto, latest, best or a path",
        )
    record = read_directory(path)
    own = [row for row in rows if row["run_id"] == record.meta["run_id"]]
    inside = path.absolute().parent == run_dir
    newest = inside and bool(own) and max(own, key=lambda r: r["step"])["file"] == path.name
    return Restored(record, path.name, forks=not newest)


def find_weights(source: str | Path, run_dir: Path) -> tuple[Snapshot, str]:
    """The checkpoint that `checkpoint=` names: a checkpoint, or the best (else newest) of a run
    directory or of a run id in `run_dir`."""
    path = Path(source)
    if (path / META).is_file():
        return read_directory(path), str(source)
    place, rows = path, read_manifest(path)
    if not rows:
        place = run_dir
        rows = [row for row in read_manifest(run_dir) if row["run_id"] == str(source)]
    if not rows:
        raise CheckpointError(
            1,
            f"checkpoint={str(source)!r} is no checkpoint, run directory or run id",
            where="option checkpoint",
            help="name a checkpoint directory, or the run directory that holds it",
        )
    newest = max(row["run_id"] for row in rows)
    own = [row for row in rows if row["run_id"] == newest]
    scored = rank([row for row in own if row["score"] is not None])
    row = scored[0] if scored else max(own, key=lambda row: row["step"])
    return read_directory(place / row["file"]), f"{source} ({row['file']})"


# ------------------------------------------------------------------------------ what is refused


def check_layout(
    record: Snapshot, rows: Sequence[Mapping[str, Any]], *, weights_only: bool, where: str
) -> None:
    """E-CKPT-004 unless the record has the bundle's leaves, by path, shape, dtype and group."""
    roles = ("param/", "state/") if weights_only else ("param/", "state/", "slot/")
    stored = {r["path"]: r for r in record.meta["layout"] if r["path"].startswith(roles)}
    wanted = {r["path"]: r for r in rows if r["path"].startswith(roles)}
    problems = [f"{path} is missing" for path in wanted if path not in stored]
    problems += [f"{path} is not in the bundle" for path in stored if path not in wanted]
    problems += [
        f"{path} is {_spell(stored[path])} in the checkpoint, {_spell(wanted[path])} in the bundle"
        for path in wanted
        if path in stored and _spell(stored[path]) != _spell(wanted[path])
    ]
    if problems:
        raise CheckpointError(
            4,
            f"the checkpoint's layout is another: {problems[0]}",
            where=where,
            also=problems[1:],
            help="build with the structure it was trained with, or start a fresh run",
        )


def _spell(row: Mapping[str, Any]) -> str:
    shape = ",".join(map(str, row["shape"]))
    return f"{row['dtype']}[{shape}]" + (f" of group {row['group']}" if row["group"] else "")


def check_graphconst(record: Snapshot, manifest: Manifest, where: str) -> None:
    """E-CKPT-005 for a GraphConst value that differs, with both."""
    stored = record.meta["fields"]
    changed = [
        f"{name} was {stored[name]!r}, is {entry.value!r}"
        for name, entry in manifest.fields.items()
        if entry.kind == "GraphConst" and name in stored and stored[name] != entry.value
    ]
    if changed:
        raise CheckpointError(
            5,
            f"GraphConst values differ: {changed[0]}",
            where=where,
            also=changed[1:],
            help="build with the recorded value, or start a fresh run",
        )


def nothing_left(record: Snapshot, max_epochs: int, max_steps: int | None, rule: Any) -> str | None:
    """Why a finished run stays finished; None when a limit grew or the stopping rule changed."""
    meta = record.meta
    reason = meta.get("stop_reason")
    if reason not in DONE or _grew(reason, meta["options"], max_epochs, max_steps):
        return None
    if reason == "early_stop" and _changed(meta, rule):
        return None
    return f"the run ended as {reason} at epoch {meta['epoch']}, step {meta['step']}"


def _grew(reason: str, stored: Mapping[str, Any], max_epochs: int, max_steps: int | None) -> bool:
    """Whether the limit that ended the run did; after an early stop, any."""
    old_steps = stored["max_steps"]
    more_steps = old_steps is not None and (max_steps is None or max_steps > old_steps)
    more_epochs = max_epochs > stored["max_epochs"]
    if reason == "max_steps":
        return more_steps
    return more_epochs or (reason == "early_stop" and more_steps)


def _changed(meta: Mapping[str, Any], rule: Any) -> bool:
    stored = meta.get("early_stop") or {}
    current = rule.rule() if hasattr(rule, "rule") else None
    return current is None or any(stored.get(key) != value for key, value in current.items())
