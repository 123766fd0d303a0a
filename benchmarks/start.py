"""Process start to first step: `nitroc run bundle` and the hand-written script, as subprocesses."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parent
NITROC = str(Path(sys.executable).parent / "nitroc")
EXPERIMENT = HERE.parent / "examples" / "char_lm" / "exp.py"
LOOK_EVERY = 0.002
KEEP_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def start(quick: bool) -> dict[str, float]:
    """Median seconds from a process's start to the loss of step 1, and ratios of the medians.

    Cold: nothing was compiled before. Warm: nitroc has its cache of executables, the script jax's
    persistent cache as it comes, which keeps what took a second to compile; `kept`: told to keep
    every program, however small. `start` is the ratio to the script with its cache as it comes.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        bundle = directory / "bundle"
        build = [NITROC, "build", str(EXPERIMENT), "-o", str(bundle), "-q"]
        subprocess.run(build, env={**os.environ, "XDG_CACHE_HOME": text}, check=True)
        for cold in range(1 if quick else 3):
            caches = directory / str(cold)
            seconds["nitroc_cold"].append(_nitroc(bundle, caches))
            seconds["jax_cold"].append(_by_hand(caches))
        _by_hand(directory / "kept", KEEP_ALL)
        for _ in range(3 if quick else 9):
            seconds["nitroc_warm"].append(_nitroc(bundle, directory / "0"))
            seconds["jax_warm"].append(_by_hand(directory / "0"))
            seconds["jax_kept"].append(_by_hand(directory / "kept", KEEP_ALL))
    found = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        **{f"{name}_s": value for name, value in found.items()},
        "start": found["nitroc_warm"] / found["jax_warm"],
        "start_kept": found["nitroc_warm"] / found["jax_kept"],
        "start_cold": found["nitroc_cold"] / found["jax_cold"],
    }


def _nitroc(bundle: Path, caches: Path) -> float:
    with tempfile.TemporaryDirectory() as text:
        run = [NITROC, "run", str(bundle), "--run-dir", text, "--max-steps", "1", "-q"]
        log = Path(text) / "metrics.jsonl"
        return _until(run, {"XDG_CACHE_HOME": str(caches)}, log, b'"context":"train"')


def _by_hand(caches: Path, options: Mapping[str, str] = MappingProxyType({})) -> float:
    with tempfile.TemporaryDirectory() as text:
        script = [sys.executable, str(HERE / "handwritten_lm.py"), "--steps", "1"]
        cache = {"JAX_COMPILATION_CACHE_DIR": str(caches / "jax")}
        return _until(script, {**cache, **options}, Path(text) / "out", b"step 1 ")


def _until(command: list[str], caches: Mapping[str, str], file: Path, mark: bytes) -> float:
    """Seconds from the start of `command` until `mark` is in `file`; then it runs to its end.

    `caches`: environment variables that say where compiled programs are kept, and which. What it
    prints goes to `out` beside `file`. RuntimeError when it ends without the mark.
    """
    out = file.parent / "out"
    with out.open("wb") as stream:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **caches}, stdout=stream, stderr=stream
        )
        seconds: float | None = None
        while seconds is None and process.poll() is None:
            if file.exists() and mark in file.read_bytes():
                seconds = time.perf_counter() - began
            time.sleep(LOOK_EVERY)
        process.wait()
    if seconds is None or process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} made no step:\n{out.read_text()[-2000:]}")
    return seconds
