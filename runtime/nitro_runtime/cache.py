"""Compiled programs, kept in memory and under the user's cache directory, with a reason per miss.

An executable is found by what decides its machine code: the program's text without locations, the
compile options, XLA_FLAGS, platform, jaxlib version and CPU features. A miss is explained by the
named ingredients the compiler gives each program, against the nearest program of the same role.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from nitro_runtime import pjrt
from nitro_runtime.cache_reasons import Ingredients, explain, role_of
from nitro_runtime.cache_store import Store, user_directory
from nitro_runtime.errors import DeviceError


class CacheStats(TypedDict):
    """Lookups so far; `by_source` counts `memory`, `disk`, `compiled`; `reasons` one per miss."""

    hits: int
    misses: int
    entries: int
    by_source: dict[str, int]
    reasons: list[str]


@dataclass(frozen=True)
class Program:
    """What is compiled: the artifact and its location-free text, its interface, its ingredients.

    `ingredients` name what the program was made from: `program` (`train_step`), `GraphConst width`
    (`128`), `batch img` (`f32[32,64]`), `hook loss` (a digest, then a space and `exp.py:41`), and
    `experiment`, which keeps the reasons of one experiment from naming another's programs.
    """

    text: str
    artifact: bytes
    ingredients: Mapping[str, str]
    args: Sequence[pjrt.TensorEntry]
    results: Sequence[pjrt.TensorEntry]
    donate: Sequence[Sequence[int]] = ()


@dataclass
class _Counts:
    sources: Counter[str] = field(default_factory=lambda: Counter[str]())
    reasons: list[str] = field(default_factory=lambda: list[str]())


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class ExecutableCache:
    """Executables by key, shared by every handle of the process; safe to use from any thread.

    `directory` holds the entries on disk; None is `nitroc` in the user's cache directory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._executables: dict[str, pjrt.Executable] = {}
        self._known: dict[str, Ingredients] = {}
        self._busy: dict[str, threading.Lock] = {}
        self._counts = _Counts()

    @property
    def directory(self) -> Path | None:
        """Where entries are stored; None where the user has no cache directory."""
        return self._directory or user_directory()

    def get(
        self,
        program: Program,
        device: pjrt.Device,
        *,
        say: Callable[[str], None] = _to_stderr,
        poll: Callable[[], None] | None = None,
    ) -> pjrt.Executable:
        """The executable of `program` on `device`: from memory, from disk, or compiled now.

        `say` is told, in one line, of a stored entry that can't be used and of a store that can't
        be written; neither is an error. `poll` as in `pjrt.compile`, whose errors are raised.
        """
        made_for = {**pjrt.fingerprint(device), "device": str(device.id)}
        key = _key(program.text, made_for)
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            found = self._executables.get(key)
            if found is not None:
                return self._count("memory", found.bind(*_interface(program)))
            return self._load_or_compile(key, program, device, made_for, say, poll)

    def _load_or_compile(
        self,
        key: str,
        program: Program,
        device: pjrt.Device,
        made_for: Mapping[str, str],
        say: Callable[[str], None],
        poll: Callable[[], None] | None,
    ) -> pjrt.Executable:
        store = Store(self.directory, say)
        role = role_of(program.ingredients)
        ingredients = Ingredients(dict(program.ingredients), dict(made_for))
        stored = store.read(role, key)
        if stored is not None:
            loaded = _load(stored, program, device, say)
            if loaded is not None:
                return self._keep(key, ingredients, "disk", loaded)
        unusable = store.damaged or stored is not None
        why = "stored entry unusable" if unusable else self._why(role, key, ingredients, store)
        args, results, donate = _interface(program)
        made = pjrt.compile(program.artifact, device, args, results, donate=donate, poll=poll)
        with self._lock:
            self._counts.reasons.append(f"{program.ingredients.get('program', role)}: {why}")
        self._save(store, role, key, ingredients, made, say)
        return self._keep(key, ingredients, "compiled", made)

    def _why(self, role: str, key: str, ingredients: Ingredients, store: Store) -> str:
        with self._lock:
            known = [i for i in self._known.values() if role_of(i.named) == role]
        return explain(ingredients, store.ingredients(role, but=key) + known)

    def _save(
        self,
        store: Store,
        role: str,
        key: str,
        ingredients: Ingredients,
        made: pjrt.Executable,
        say: Callable[[str], None],
    ) -> None:
        if store.directory is None:
            return
        try:
            serialized = made.serialize()
        except DeviceError as error:
            say(f"compile cache: {role} is kept in memory only: {error.what}")
            return
        store.write(role, key, ingredients, serialized)

    def _keep(
        self, key: str, ingredients: Ingredients, source: str, executable: pjrt.Executable
    ) -> pjrt.Executable:
        with self._lock:
            self._executables[key] = executable
            self._known[key] = ingredients
        return self._count(source, executable)

    def _count(self, source: str, executable: pjrt.Executable) -> pjrt.Executable:
        with self._lock:
            self._counts.sources[source] += 1
        return executable

    def stats(self) -> CacheStats:
        """Counts and reasons since the start or the last `reset`."""
        with self._lock:
            sources = {name: self._counts.sources[name] for name in ("memory", "disk", "compiled")}
            return CacheStats(
                hits=sources["memory"] + sources["disk"],
                misses=sources["compiled"],
                entries=len(self._executables),
                by_source=sources,
                reasons=list(self._counts.reasons),
            )

    def reset(self, disk: bool = False) -> None:
        """Forgets every executable and count; with `disk` the stored ones too."""
        with self._lock:
            self._executables.clear()
            self._known.clear()
            self._counts = _Counts()
            if disk:
                Store(self.directory, _to_stderr).clear()


def _interface(program: Program) -> tuple[Any, Any, Any]:
    return program.args, program.results, program.donate


def _key(text: str, made_for: Mapping[str, str]) -> str:
    parts = {"text": hashlib.sha256(text.encode()).hexdigest(), **made_for}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _load(
    stored: bytes, program: Program, device: pjrt.Device, say: Callable[[str], None]
) -> pjrt.Executable | None:
    args, results, donate = _interface(program)
    try:
        return pjrt.deserialize(stored, device, args, results, donate=donate)
    except DeviceError as error:
        name = program.ingredients.get("program", "program")
        say(f"compile cache: {name} is compiled again: {error.what}")
        return None


CACHE = ExecutableCache()
"""The cache of this process."""


def cache_stats() -> CacheStats:
    """Lookups of this process's cache: hits, misses, entries, by source, a reason per miss."""
    return CACHE.stats()


def cache_reset(disk: bool = False) -> None:
    """Empties this process's cache; with `disk` the user's cache directory too."""
    CACHE.reset(disk)
