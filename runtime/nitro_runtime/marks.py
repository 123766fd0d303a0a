"""Marks at run time: what reports count, and the series that lines carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_runtime.errors import GuardFinding
from nitro_runtime.manifest import GuardEntry, Manifest
from nitro_runtime.places import Found
from nitro_runtime.report_words import Value

EXACT = 2**24
"""Whole numbers up to here are exact in f32, which series may be stored in."""

_ODD = {1: "negative", 2: "infinite", 3: "NaN"}


def series_name(name: str, meta: Mapping[str, Any]) -> str:
    """`name{k=v,k2=v2}`, sorted; the bare name without metadata."""
    tags = ",".join(f"{key}={spelled(meta[key])}" for key in sorted(meta))
    return f"{name}{{{tags}}}" if tags else name


def logged_name(name: str, meta: Mapping[str, Any]) -> str:
    """What loggers call the series of an entry of `series`: a pass has its split among the tags."""
    hidden = {"stage", "split"} if meta.get("stage") == "train" else {"stage"}
    return series_name(name, {key: meta[key] for key in meta if key not in hidden})


def spelled(value: object) -> str:
    """A value of metadata as names and messages have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Series:
    """A point of a series. `meta` is that of the mark."""

    name: str
    meta: Mapping[str, Any]
    stage: str
    split: str
    value: float

    @property
    def key(self) -> str:
        """The name among metrics: metadata in braces."""
        return series_name(self.name, self.meta)

    @property
    def logged(self) -> str:
        """The name among the values of a line; one without metadata is flat everywhere."""
        return logged_name(self.name, self.entry()["meta"]) if self.meta else self.name

    def entry(self) -> dict[str, Any]:
        """The point as loggers have it in `series`; null for a value that is not finite."""
        meta = {**self.meta, "stage": self.stage, "split": self.split}
        value = self.value if math.isfinite(self.value) else None
        return {"name": self.name, "meta": dict(sorted(meta.items())), "value": value}


@dataclass(frozen=True)
class Site:
    """One call of a mark. `key` names it among all; those of one series share `series`."""

    key: str
    kind: str
    name: str
    meta: Mapping[str, Any]
    source: str
    reduce: str = "mean"

    @property
    def series(self) -> str:
        return series_name(self.name, self.meta)


@dataclass(frozen=True)
class Counted:
    """A call that counted. `odd` says that a count was none; `optimizer`: it is in a rule."""

    finding: GuardFinding
    odd: int = 0
    optimizer: bool = False

    @property
    def said(self) -> str:
        """`guard geometry/off-manifold layer=3 counted 12`."""
        finding = self.finding
        meta = "".join(f" {k}={spelled(finding.meta[k])}" for k in sorted(finding.meta))
        which = "its count" if finding.count == 1 else "one of its counts"
        why = f" ({which} was {_ODD[self.odd]})" if self.odd else ""
        return f"guard {finding.name}{meta} counted {finding.count}{why}"


@dataclass
class Amount:
    """What the executions of one site add up to; `n` of them, combined by `reduce`."""

    site: Site
    value: float
    n: int


class ReportMarks:
    """The marks of one program's report; of diagnostics only the `selected` ones, by key."""

    def __init__(
        self, manifest: Manifest, words: Iterable[str], selected: Collection[str] = ()
    ) -> None:
        there = set(words)
        sites = [
            _site(key, entry)
            for key, entry in manifest.guards.placed.items()
            if entry.kind != "diagnostic" or key in selected
        ]
        self._counts = [
            (site, f"guard/{site.key}") for site in sites if f"guard/{site.key}" in there
        ]
        self._values = [
            (site, f"mark/{site.key}:{channel}", f"mark/{site.key}:n")
            for site in sites
            for channel in ("sum", "max", "min")
            if f"mark/{site.key}:{channel}" in there
        ]
        self._paths = {g.name: [leaf.path for leaf in g.leaves] for g in manifest.groups}

    def __bool__(self) -> bool:
        return bool(self._counts or self._values)

    def counts(self, values: Mapping[str, Value]) -> list[tuple[Site, int, int]]:
        """Every guard with its count and `odd`, in the order of the source."""
        return [
            (site, int(values[word]), int(values.get(f"{word}:odd", 0)))
            for site, word in self._counts
        ]

    def counted(self, values: Mapping[str, Value]) -> list[Counted]:
        """The guards that counted, in the order of the source."""
        return [
            self._first_update(site, word, values)
            if f"{word}:first" in values
            else Counted(finding(site, int(values[word])), int(values.get(f"{word}:odd", 0)))
            for site, word in self._counts
            if values[word]
        ]

    def _first_update(self, site: Site, word: str, values: Mapping[str, Value]) -> Counted:
        """An optimizer's guard names the first parameter whose update counted, with its count."""
        path = self._paths[str(site.meta["group"])][int(values[f"{word}:first"])]
        found = finding(site, int(values[f"{word}:first_count"]), param=path)
        return Counted(found, int(values.get(f"{word}:odd", 0)), optimizer=True)

    def amounts(self, values: Mapping[str, Value]) -> list[Amount]:
        """What each metric and diagnostic came to."""
        return [Amount(site, float(values[word]), int(values[n])) for site, word, n in self._values]

    def series(self, values: Mapping[str, Value]) -> list[Series]:
        """The points of a step: values as far as there was an execution, then guards.

        A count that is not zero ends the run at its own step: all since the last line were zero,
        so the sum that a line carries is that of its step.
        """
        points = [
            Series(*identity, "train", "train", value)
            for identity, value in combined(self.amounts(values))
        ]
        return points + guard_series(self.counts(values), "train", "train")

    def metric_names(self) -> list[str]:
        """The series of metrics, with metadata in braces."""
        return list(dict.fromkeys(site.series for site, _, _ in self._values))


Identity = tuple[str, Mapping[str, Any]]


def combined(amounts: Iterable[Amount]) -> list[tuple[Identity, float]]:
    """The value of each series that was executed, by its `reduce` over all its sites."""
    by_series: dict[str, list[Amount]] = {}
    for amount in amounts:
        if amount.n:
            by_series.setdefault(amount.site.series, []).append(amount)
    return [((a[0].site.name, a[0].site.meta), _combine(a)) for a in by_series.values()]


def _combine(amounts: Sequence[Amount]) -> float:
    reduce = amounts[0].site.reduce
    values = [amount.value for amount in amounts]
    if reduce == "mean":
        return sum(values) / sum(amount.n for amount in amounts)
    fold: dict[str, Callable[[list[float]], Any]] = {"sum": sum, "max": np.max, "min": np.min}
    return float(fold[reduce](values))


def guard_series(counts: Iterable[tuple[Site, int, int]], stage: str, split: str) -> list[Series]:
    """One point per guard and metadata; a count too large for a series is left out."""
    totals: dict[str, int] = {}
    identities: dict[str, Identity] = {}
    for site, count, _ in counts:
        totals[site.series] = totals.get(site.series, 0) + count
        identities[site.series] = (f"guard/{site.name}", site.meta)
    return [
        Series(*identities[series], stage, split, total)
        for series, total in totals.items()
        if total <= EXACT
    ]


def finding(site: Site, count: int, **more: str) -> GuardFinding:
    """A site that counted; `more` joins its metadata."""
    return GuardFinding(site.name, {**site.meta, **more}, count, site.source or None)


class PassMarks:
    """The marks of a pass over `split`: counts add up, values are weighted by real rows."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._counts: dict[str, tuple[Site, int, int]] = {}
        self._means: dict[str, tuple[Identity, float, int]] = {}

    def add(
        self,
        rows: int,
        reports: Iterable[tuple[ReportMarks, Mapping[str, Value]]],
        found: Iterable[Found] = (),
    ) -> None:
        """Adds a batch of `rows` real rows: its reports, and what marks on numpy found."""
        amounts: list[Amount] = []
        for marks, values in reports:
            for site, count, odd in marks.counts(values):
                self._count(site, count, odd)
            amounts += marks.amounts(values)
        for item in found:
            site = _found_site(item)
            if item.value is None or (item.below, item.above) != (None, None):
                self._count(site, item.count, item.odd)
            if item.value is not None:
                amounts.append(Amount(site, item.value, 1))
        for (name, meta), value in combined(amounts):
            key = series_name(name, meta)
            _, total, seen = self._means.get(key, ((name, meta), 0.0, 0))
            self._means[key] = ((name, meta), total + rows * value, seen + rows)

    def _count(self, site: Site, count: int, odd: int) -> None:
        _, total, worst = self._counts.get(site.key, (site, 0, 0))
        self._counts[site.key] = (site, total + count, max(worst, odd))

    def counted(self) -> list[Counted]:
        """The guards that counted."""
        return [
            Counted(finding(site, count), odd)
            for site, count, odd in self._counts.values()
            if count
        ]

    def guards(self) -> list[Series]:
        """One point per guard."""
        return guard_series(self._counts.values(), "evaluate", self._split)

    def metrics(self) -> list[Series]:
        """The value of each metric over the pass."""
        return [
            Series(*identity, "evaluate", self._split, total / rows)
            for identity, total, rows in self._means.values()
        ]


def _site(key: str, entry: GuardEntry) -> Site:
    return Site(key, entry.kind, entry.name, entry.metadata, entry.source, entry.reduce)


def _found_site(item: Found) -> Site:
    meta = dict(item.meta)
    key = f"{series_name(item.name, meta)} at {item.source}"
    return Site(key, item.kind, item.name, meta, item.source, item.reduce)
