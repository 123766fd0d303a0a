"""Loggers: the JSON log, several loggers as one, and what happens when one fails.

A logger is any object with `log_params`, `log_metrics`, `log_other` and `finish`; `log_tags`,
`log_annotation`, `info`, `run_url`, `logger_state`, `reattach` and `bind` are optional. None is
off, a list is several at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from nitro_runtime.errors import CheckpointError
from nitro_runtime.marks import Series, logged_name

Context = str

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class JSONLogger:
    """One strict-JSON object per line in `metrics.jsonl`.

    Lines wait until `bind` names the run directory. Train and validate lines hold no times, so
    equal runs give equal bytes; values that are not finite are null, their names in `nonfinite`.
    """

    run_id: str | None = None
    run_url: str | None = None

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._waiting: list[bytes] = []
        self._path: Path | None = None

    def bind(self, run_dir: Path) -> None:
        """Opens `run_dir/metrics.jsonl` for appending; the caller holds the directory's lock."""
        self.close()
        self._path = run_dir / "metrics.jsonl"
        self._file = self._path.open("ab+", buffering=0)
        if _ends_in_half_a_line(self._file):
            self._file.write(b"\n")
        for line in self._waiting:
            self._file.write(line)
        self._waiting.clear()

    def close(self) -> None:
        """Closes the file; later lines wait for the next `bind`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _line(self, kind: str, fields: Mapping[str, Any], **more: Any) -> None:
        row = {"type": kind, **fields, **more}
        line = _ENCODER.encode(row).encode() + b"\n"
        if self._file is None:
            self._waiting.append(line)
        else:
            self._file.write(line)

    def log_params(self, params: Mapping[str, Any], **_: Any) -> None:
        self._line("params", plain(params))

    def log_metrics(
        self,
        metrics: Mapping[str, float],
        *,
        step: int,
        epoch: int,
        context: Context,
        nonfinite: Sequence[str] = (),
        series: Sequence[Mapping[str, Any]] = (),
        partial: bool = False,
        **_: Any,
    ) -> None:
        # What has metadata is an entry of `series`, and only there.
        tagged = {logged_name(point["name"], point["meta"]) for point in series}
        row: dict[str, Any] = {"context": context, "epoch": epoch, "step": step}
        row.update((name, value) for name, value in metrics.items() if name not in tagged)
        row.update((name, None) for name in nonfinite if name not in tagged)
        if nonfinite:
            row["nonfinite"] = list(nonfinite)
        if series:
            row["series"] = plain(series)
        if partial:
            row["partial"] = True
        self._line("metrics", row)

    def log_other(self, key: str, value: Any, **_: Any) -> None:
        if key == "resume" and isinstance(value, Mapping):
            self._line("resume", plain(cast("Mapping[str, Any]", value)))
        else:
            self._line("other", {"key": key, "value": plain(value)})

    def log_tags(self, tags: Sequence[str], **_: Any) -> None:
        self._line("tags", {"tags": list(tags)})

    def log_annotation(
        self,
        text: str,
        *,
        step: int | None = None,
        epoch: int | None = None,
        data: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self._line("annotation", {"text": text, "step": step, "epoch": epoch, **plain(data or {})})

    def finish(self, status: str, *, error: str | None = None, **_: Any) -> None:
        self._line("finish", {"status": status} | ({"error": error} if error else {}))
        self.close()

    def info(self) -> dict[str, Any]:
        """Where the log is."""
        return {"path": None if self._path is None else str(self._path)}


def _ends_in_half_a_line(file: BinaryIO) -> bool:
    if file.seek(0, 2) == 0:
        return False
    file.seek(-1, 2)
    return file.read(1) != b"\n"


def plain(value: Any) -> Any:
    """`value` as strict JSON: numpy scalars as Python's, arrays as dtype and shape, the rest by
    `repr`; a number that is not finite is its name."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return plain(value.item()) if value.shape == () else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if isinstance(value, str | int | float | None) else repr(value)


def split_finite(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The finite scalars of `values`, and the names of those that are not."""
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    return finite, [name for name in values if name not in finite]


class Loggers:
    """The run's loggers as one: each verb goes to each; one that fails is reported once and never
    ends a run."""

    def __init__(self, loggers: Any, say: Callable[[str], None]) -> None:
        several = isinstance(loggers, list | tuple)
        items = list(cast("Sequence[Any]", loggers)) if several else [loggers]
        self.all: list[Any] = [item for item in items if item is not None]
        self._several = several
        self._failed: set[int] = set()
        self._say = say

    def __bool__(self) -> bool:
        return bool(self.all)

    def _call(self, verb: str, *args: Any, **keywords: Any) -> None:
        for logger in self.all:
            method = getattr(logger, verb, None)
            if method is None:
                continue
            try:
                method(*args, **keywords)
            except Exception as error:
                # A logger is the user's or a service's code: whatever it raises, training goes on.
                self._report(logger, verb, error)

    def _report(self, logger: Any, verb: str, error: Exception) -> None:
        if id(logger) in self._failed:
            return
        self._failed.add(id(logger))
        name = type(logger).__name__
        self._say(f"logger {name} failed in {verb}, which is said once: {error!r}")

    def bind(self, run_dir: Path) -> None:
        """Tells loggers that write there where the run directory is."""
        self._call("bind", run_dir)

    def params(self, params: Mapping[str, Any]) -> None:
        self._call("log_params", dict(params))

    def metrics(
        self,
        values: Mapping[str, Any],
        *,
        step: int,
        epoch: int,
        context: Context,
        series: Sequence[Series] = (),
        partial: bool = False,
    ) -> None:
        """Finite values only; the names of the others beside them. Points of marks are among the
        values, those with metadata also in `series`."""
        if not self.all:
            return
        points = {point.logged: point.value for point in series}
        finite, nonfinite = split_finite({**values, **points})
        self._call(
            "log_metrics",
            finite,
            step=step,
            epoch=epoch,
            context=context,
            nonfinite=nonfinite,
            series=[point.entry() for point in series if point.meta],
            partial=partial,
        )

    def other(self, key: str, value: Any) -> None:
        self._call("log_other", key, value)

    def tags(self, tags: Sequence[str]) -> None:
        self._call("log_tags", list(tags))

    def annotation(self, text: str, *, step: int, epoch: int, data: Mapping[str, Any]) -> None:
        self._call("log_annotation", text, step=step, epoch=epoch, data=dict(data))

    def finish(self, status: str, error: str | None = None) -> None:
        """Once, at the end; `error` only when there is one."""
        self._call("finish", status, **({} if error is None else {"error": error}))

    def states(self) -> Any:
        """What `meta.json` keeps of the loggers: a record, or a list when a list was given."""
        records = [self._state(logger) for logger in self.all]
        return records if self._several else (records[0] if records else None)

    def reattach(self, stored: Any) -> None:
        """Hands each logger its stored state; E-CKPT-008 names one that can't take it."""
        records = cast("list[Any]", stored if isinstance(stored, list) else [stored])
        kept = [record for record in records if record]
        found, wanted = [type(item).__name__ for item in self.all], [r["type"] for r in kept]
        if kept and found != wanted:
            raise CheckpointError(
                8,
                f"the checkpoint was logged by {', '.join(wanted)}, "
                f"this run has {', '.join(found) or 'no logger'}",
                where="option logger",
                help="use the logger the run was started with",
            )
        for logger, record in zip(self.all, kept, strict=False):
            if record.get("state") is not None:
                logger.reattach(record["state"])

    def _state(self, logger: Any) -> dict[str, Any]:
        state = None
        if hasattr(logger, "logger_state"):
            try:
                state = logger.logger_state()
            except Exception as error:  # as in `_call`
                self._report(logger, "logger_state", error)
        return _record(logger, state)


def _record(logger: Any, state: Any) -> dict[str, Any]:
    name = type(logger).__name__
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            8, f"logger {name}: logger_state() is not plain JSON: {error}", where="option logger"
        ) from error
    if state is not None and not hasattr(logger, "reattach"):
        raise CheckpointError(
            8, f"logger {name} has logger_state() but no reattach(state)", where="option logger"
        )
    return {
        "type": name,
        "state": state,
        "run_id": getattr(logger, "run_id", None),
        "run_url": getattr(logger, "run_url", None),
    }
