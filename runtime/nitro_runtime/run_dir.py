"""The directory of a run: who may write it, what it says of itself, the runs it has seen."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
import string
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nitro_runtime.durable import replace_file
from nitro_runtime.errors import RunError

if TYPE_CHECKING:
    from nitro_runtime.bundle import Bundle

STATUS_SECONDS = 1.0


def new_run_id() -> str:
    """UTC time to the millisecond and 6 random letters: ids of one directory sort by age."""
    now = datetime.datetime.now(datetime.UTC)
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(6))
    return f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}-{letters}"


def utc_now() -> str:
    """The time, as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class RunDirectory:
    """`path`, made absolute so that a later change of directory moves nothing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._locked = False
        self._status: dict[str, Any] = {}
        self._say: Callable[[str], None] = _silent
        self._told = False
        self._written = 0.0

    def probe(self) -> None:
        """Makes the directory and proves it can be written; E-RUN-001 otherwise."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe-{secrets.token_hex(4)}"
            probe.write_bytes(b"nitroc")
            probe.unlink()
        except OSError as error:
            raise RunError(
                1,
                f"the run directory {self.path} can't be written: {error.strerror or error}",
                where="option run_dir",
                help="give another run_dir, or make this one a writable directory",
            ) from error

    @property
    def _lock(self) -> Path:
        return self.path / "run.lock"

    def acquire(self, say: Callable[[str], None]) -> None:
        """Takes the lock; E-RUN-002 when a live process holds it, one line when a dead one did."""
        self._say = say
        pid = os.getpid()
        row = {"pid": pid, "host": socket.gethostname(), "began": _began(pid)}
        content = json.dumps(row).encode()
        while True:
            try:
                handle = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                self._recover(say)
                continue
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            self._locked = True
            return

    def _recover(self, say: Callable[[str], None]) -> None:
        holder = _read_json(self._lock)
        pid, host = holder.get("pid"), holder.get("host")
        here = host == socket.gethostname()
        if here and isinstance(pid, int) and not _alive(pid, holder.get("began")):
            say(f"{self._lock}: process {pid} is gone, its lock is taken over")
        elif holder or _age(self._lock) < 1.0:
            raise RunError(
                2,
                f"process {pid} on {host} is training in {self.path}",
                where=str(self._lock),
                help="wait for it, stop it, or give another run_dir; delete a lock of nobody's",
            )
        self._lock.unlink(missing_ok=True)

    def release(self) -> None:
        """Gives the lock back; a second call does nothing."""
        if self._locked:
            self._lock.unlink(missing_ok=True)
            self._locked = False

    def adopt(self, bundle: Bundle) -> None:
        """Writes `bundle.json` and hard copies of the manifest and the IR."""
        path = None if bundle.path is None else str(Path(bundle.path).absolute())
        row = {"digest": bundle.manifest.digest, "path": path}
        replace_file(self.path / "bundle.json", _json_bytes(row))
        names = ["manifest.json", *(n for n in bundle.manifest.files if n.startswith("ir/"))]
        for name in names:
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            content = bundle.read(name)
            if not target.is_file() or target.read_bytes() != content:
                replace_file(target, content)

    def status(self, **changes: Any) -> None:
        """Writes `status.json` with `changes`; when it can't be, that is said once, and no more."""
        self._status.update(changes, updated_at=utc_now())
        self._status.setdefault("pid", os.getpid())
        self._status.setdefault("host", socket.gethostname())
        self._written = time.monotonic()
        try:
            replace_file(self.path / "status.json", _json_bytes(self._status), sync=False)
        except OSError as error:
            if not self._told:
                self._told = True
                self._say(f"status.json can't be written, which is said once: {error}")

    def due(self) -> bool:
        """Whether `status.json` is a second old."""
        return time.monotonic() - self._written >= STATUS_SECONDS


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):  # gone, or half written: an empty record says so
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _silent(_: str) -> None:
    return None


def _alive(pid: int, began: object) -> bool:
    """Whether process `pid` is there, and no other that got its number since `began`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, but there
        pass
    now = _began(pid)
    return began is None or now is None or began == now


def _began(pid: int) -> str | None:
    """When a process began, as the system counts; None where it does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name in parentheses may hold spaces; the 20th field after it is the start time.
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return None


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSONL file; a line that is no JSON object (cut by a kill) is passed over."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:  # half a line, isolated by the writer that came after
                continue
            if isinstance(value, dict):
                yield cast("dict[str, Any]", value)


@dataclass(frozen=True)
class RunRow:
    """A run of a directory: where it got to and how it ended (`stop_reason` null: it goes on, or
    was killed)."""

    run_id: str
    parent: Any
    epoch: int | None
    step: int | None
    stop_reason: str | None
    run_dir: str


def runs(directory: str | Path) -> list[RunRow]:
    """The runs of a run directory, or of the run directories in it, oldest first."""
    top = Path(directory)
    if not top.is_dir():
        raise RunError(3, f"no directory {top}", where=str(top))
    places = [top, *sorted(p for p in top.iterdir() if p.is_dir())]
    rows = [row for place in places for row in _runs_of(place)]
    return sorted(rows, key=lambda row: row.run_id)


def _runs_of(place: Path) -> list[RunRow]:
    rows: dict[str, dict[str, Any]] = {}
    current: dict[str, Any] = {}
    for line in read_lines(place / "metrics.jsonl"):
        match line.get("type"):
            case "params" | "resume" if "run_id" in line:
                current = rows.setdefault(str(line["run_id"]), {"parent": line.get("parent")})
                current["stop_reason"] = None
            case "metrics":
                current.update(epoch=line.get("epoch"), step=line.get("step"))
            case "finish":
                current["stop_reason"] = line.get("status")
            case _:
                pass
    return [
        RunRow(
            run_id,
            row.get("parent"),
            row.get("epoch"),
            row.get("step"),
            row.get("stop_reason"),
            str(place),
        )
        for run_id, row in rows.items()
    ]
