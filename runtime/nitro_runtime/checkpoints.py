"""Checkpoints on disk: the best `k` and the newest, written in the background, never half there.

Order of a save: the snapshot under a temp name, fsync, rename; then `checkpoints.json`; only then
is what it displaces removed.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, cast

from nitro_runtime import snapshot as snapshots
from nitro_runtime.durable import fsync_directory, replace_file, retrying, stale_temps, temp_name
from nitro_runtime.errors import CheckpointError, UsageError
from nitro_runtime.snapshot import Snapshot, meta_bytes, read_directory, read_meta
from nitro_runtime.stopping import check_mode

LIST = "checkpoints.json"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST = 200
_KEYS = ("file", "epoch", "step", "score", "metric", "mode", "stop_reason", "run_id", "parent")

Entry = dict[str, Any]


class Filename(Protocol):
    """The hook `checkpoint_filename`; None for the standard name."""

    def __call__(
        self, *, epoch: int, step: int, metric: str | None, score: float | None
    ) -> str | None: ...


def read_manifest(directory: str | Path) -> list[Entry]:
    """The checkpoints in `directory`, as `checkpoints.json` lists them; `[]` when no run wrote."""
    place = Path(directory)
    try:
        rows = json.loads((place / LIST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except ValueError as error:
        raise CheckpointError(2, f"{LIST} can't be read: {error}", where=str(place)) from error
    listed = cast("list[Any]", rows if isinstance(rows, list) else [None])
    if not all(isinstance(row, dict) and set(_KEYS) <= row.keys() for row in listed):
        raise CheckpointError(
            2,
            f"{LIST} is no list of checkpoints",
            where=str(place),
            help="put the file back, or name a checkpoint by its path",
        )
    return [row for row in cast("list[Entry]", rows) if _is_there(place, row)]


def _is_there(place: Path, row: Entry) -> bool:
    return (place / row["file"] / "meta.json").exists()


def standard_name(epoch: int, step: int, metric: str | None, score: float | None) -> str:
    """`epoch-0006-step-4500-val_loss=0.0416831`; without a score just epoch and step."""
    name = f"epoch-{epoch:04d}-step-{step}"
    if metric is None or score is None:
        return name
    return f"{name}-{_ILLEGAL.sub('_', metric)[:40]}={score:.6g}"


class TopKCheckpointer:
    """Keeps the best `k` checkpoints by `metric`, and the newest by stored step.

    `dir` adopts the run directory. `keep_latest=False` writes only what ranks.
    """

    def __init__(
        self,
        k: int = 3,
        metric: str = "val_loss",
        mode: str = "min",
        keep_latest: bool = True,
        dir: str | Path | None = None,
        name: Filename | None = None,
    ) -> None:
        check_mode(mode, "checkpointer")
        if k < 0 or (k == 0 and not keep_latest):
            raise UsageError(
                67,
                f"k is {k}, expected at least {0 if keep_latest else 1}",
                where="option checkpointer",
            )
        self.k = k
        self.metric = metric
        self.mode = mode
        self.keep_latest = keep_latest
        self._given = None if dir is None else Path(dir).absolute()
        self._name: Filename | None = name
        self._directory: Path | None = self._given
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._say: Callable[[str], None] = _silent

    @property
    def directory(self) -> Path:
        """Where the checkpoints are."""
        assert self._directory is not None, "bind() comes first"
        return self._directory

    def bind(
        self, run_dir: Path, filename: Filename, say: Callable[[str], None] | None = None
    ) -> None:
        """Adopts the run directory and the naming hook, unless they were given."""
        self._directory = self._given or run_dir
        self._name = self._name or filename
        self._say = say or _silent

    def recover(self) -> None:
        """Removes what writers that died left and lists checkpoints that only lack their row; for
        the holder of the run directory's lock."""
        for temp in stale_temps(self.directory):
            if temp.is_dir():
                shutil.rmtree(temp)
            else:
                temp.unlink()
        rows = read_manifest(self.directory)
        listed = {row["file"] for row in rows}
        found = sorted(p.parent for p in self.directory.glob("*/meta.json"))
        missing = [place for place in found if place.name not in listed]
        added = [row for place in missing if (row := _row_of(place)) is not None]
        if added:
            self._write_list([*rows, *added])

    def entries(self) -> list[Entry]:
        """The rows of `checkpoints.json`."""
        self.wait()
        return read_manifest(self.directory)

    def load(self, name: str) -> Snapshot:
        """The checkpoint called `name`, every byte checked."""
        self.wait()
        return read_directory(self.directory / name)

    def score(self, metrics: Mapping[str, Any] | None) -> float | None:
        """The value that ranks; None when there is none or it is not finite."""
        value = (metrics or {}).get(self.metric)
        return float(value) if value is not None and math.isfinite(value) else None

    def save(self, epoch: int, metrics: Mapping[str, Any] | None, snapshot: Snapshot) -> str | None:
        """Ranks `snapshot` and writes it in the background; its name, None when it is not kept.

        A failed earlier write surfaces here, as E-CKPT-007.
        """
        rows = self.entries()
        meta = dict(snapshot.meta)
        score = self.score(metrics)
        row = self._row(epoch, score, meta)
        # The same step of the same run comes again when a damaged checkpoint was passed over.
        rows = [r for r in rows if not (r["run_id"] == row["run_id"] and r["step"] >= row["step"])]
        row["file"] = self._pick_name(row, rows)
        kept = self._kept([*rows, row])
        if row not in kept:
            return None
        meta["score"] = _score_of(row)
        meta["checkpointer"] = {
            "k": self.k,
            "metric": self.metric,
            "mode": self.mode,
            "entries": [r for r in kept if r["run_id"] == row["run_id"]],
        }
        self._start(lambda: self._write(row, Snapshot(snapshot.arrays, meta), kept))
        return row["file"]

    def _row(self, epoch: int, score: float | None, meta: Mapping[str, Any]) -> Entry:
        ranked = score is not None
        return {
            "file": "",
            "epoch": epoch,
            "step": meta["step"],
            "score": score,
            "metric": self.metric if ranked else None,
            "mode": self.mode if ranked else None,
            "stop_reason": meta.get("stop_reason"),
            "run_id": meta["run_id"],
            "parent": meta.get("parent"),
        }

    def _pick_name(self, row: Entry, rows: Sequence[Entry]) -> str:
        epoch, step, score = row["epoch"], row["step"], row["score"]
        metric = cast("str | None", row["metric"])
        name = None
        if self._name is not None:
            name = self._name(epoch=epoch, step=step, metric=metric, score=score)
        if name is not None:
            name = _ILLEGAL.sub("_", name).lstrip(".")[:_LONGEST]
        name = name or standard_name(epoch, step, metric, score)
        taken = {r["file"] for r in rows} | _foreign_names(self.directory, row["run_id"])
        unique = (name, f"{name}-{row['run_id']}", f"{name}-{row['run_id']}-{step}")
        return next((one for one in unique if one not in taken), unique[-1])

    def _kept(self, rows: Sequence[Entry]) -> list[Entry]:
        """All of `rows` but those of the newest row's run that it and the best `k` displace."""
        newest = rows[-1]
        own = [r for r in rows if r["run_id"] == newest["run_id"]]
        rivals = [r for r in own if (r["metric"], r["mode"]) == (self.metric, self.mode)]
        sign = 1 if self.mode == "min" else -1
        best = sorted(rivals, key=lambda r: (sign * r["score"], r["step"]))[: self.k]
        gone = [r for r in own if r not in best and (r in rivals or r["score"] is None)]
        if self.keep_latest:
            latest = max(own, key=lambda r: r["step"])
            gone = [r for r in gone if r is not latest]
        return [r for r in rows if r not in gone]

    def _start(self, work: Callable[[], None]) -> None:
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="nitro-checkpoint")
        self._pending = self._writer.submit(work)

    def _write(self, row: Entry, snapshot: Snapshot, kept: Sequence[Entry]) -> None:
        target = self.directory / row["file"]
        temp = self.directory / temp_name(row["file"])

        def attempt() -> None:
            shutil.rmtree(temp, ignore_errors=True)
            snapshots.write_directory(temp, snapshot)
            if target.exists():
                shutil.rmtree(target)
            temp.rename(target)
            fsync_directory(self.directory)

        before = {r["file"] for r in read_manifest(self.directory)}
        retrying(attempt, self._say)
        retrying(lambda: self._write_list(kept), self._say)
        for name in before - {r["file"] for r in kept}:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def _write_list(self, rows: Sequence[Entry]) -> None:
        text = json.dumps(list(rows), indent=1, ensure_ascii=False, allow_nan=False)
        replace_file(self.directory / LIST, text.encode() + b"\n")

    def wait(self) -> None:
        """Returns when nothing is being written; E-CKPT-007 when that failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except OSError as error:
            raise CheckpointError(
                7,
                f"a checkpoint could not be written in {self.directory}: {error}",
                where=str(self.directory),
                help="free the disk or give another directory; the last checkpoint stands",
                step_found=True,
            ) from error

    def finish(self, run_id: str, stop_reason: str) -> None:
        """Records why the run ended in its newest checkpoint, and stops the writer."""
        try:
            rows = self.entries()
            own = [row for row in rows if row["run_id"] == run_id]
            if own:
                self._end(max(own, key=lambda row: row["step"]), stop_reason)
                self._write_list(rows)
        finally:
            self.close()

    def _end(self, last: Entry, stop_reason: str) -> None:
        last["stop_reason"] = stop_reason
        place = self.directory / last["file"]
        meta = {**read_meta(place), "stop_reason": stop_reason}
        replace_file(place / snapshots.META, meta_bytes(meta))

    def close(self) -> None:
        """Waits for the writer and ends its thread."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None


def _silent(_: str) -> None:
    return None


def _score_of(row: Entry) -> dict[str, Any] | None:
    if row["score"] is None:
        return None
    return {"metric": row["metric"], "mode": row["mode"], "value": row["score"]}


def _row_of(place: Path) -> Entry | None:
    try:
        meta = read_meta(place)
    except CheckpointError:  # damaged, or another program's directory: not ours to list
        return None
    score = meta.get("score") or {}
    return {
        "file": place.name,
        "epoch": meta["epoch"],
        "step": meta["step"],
        "score": score.get("value"),
        "metric": score.get("metric"),
        "mode": score.get("mode"),
        "stop_reason": meta.get("stop_reason"),
        "run_id": meta["run_id"],
        "parent": meta.get("parent"),
    }


def _foreign_names(directory: Path, run_id: str) -> set[str]:
    """What lies in `directory` and is no checkpoint of this run."""
    found: set[str] = set()
    for place in directory.iterdir():
        row = _row_of(place) if place.is_dir() else None
        if row is None or row["run_id"] != run_id:
            found.add(place.name)
    return found
