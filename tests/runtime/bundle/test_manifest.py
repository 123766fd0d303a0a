"""Manifest records: strict reading with JSON paths, exact round trip, the published schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_bundle import files, manifest

from nitro_runtime import manifest as entries
from nitro_runtime.canonical import dump, parse
from nitro_runtime.manifest import ARG_ROLES, ArgEntry, LeafEntry, Manifest, ProgramEntry
from nitro_runtime.records import from_json, json_schema, to_json

SCHEMA = Path(__file__).parents[3] / "docs" / "manifest.schema.json"

WORDS = st.text("abc.é", max_size=4)
SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
EXTRA = st.dictionaries(WORDS.map(lambda word: "x-" + word), st.integers(), max_size=2)
ARGS = st.builds(
    ArgEntry, WORDS, st.sampled_from(ARG_ROLES), WORDS, st.none() | WORDS, WORDS, SHAPES,
    extra=EXTRA,
)  # fmt: skip
LEAVES = st.builds(LeafEntry, WORDS, WORDS, SHAPES, st.lists(WORDS).map(tuple), WORDS)
PROGRAMS = st.builds(
    ProgramEntry,
    file=WORDS,
    role=st.sampled_from(entries.PROGRAM_ROLES),
    dims=st.dictionaries(WORDS, st.integers(), max_size=2),
    devices=st.integers(),
    args=st.lists(ARGS, max_size=2).map(tuple),
    results=st.just(()),
    scalars=st.just(()),
    report=st.just(()),
    donate=st.lists(st.tuples(st.integers(), st.integers()), max_size=2).map(tuple),
    golden=st.none() | st.builds(entries.GoldenEntry, WORDS, st.floats(0, 1), extra=EXTRA),
    memory=st.just({}),
    flops=st.none() | st.integers(),
    extra=EXTRA,
)
GROUPS = st.builds(
    entries.GroupEntry,
    WORDS,
    st.sampled_from(["param", "state", "outputs"]),
    st.lists(LEAVES, max_size=2).map(tuple),
    st.just(()),
    extra=st.just({}),
)
MANIFESTS = st.builds(
    Manifest,
    name=WORDS,
    experiment=st.builds(entries.ExperimentEntry, WORDS, st.none() | WORDS, extra=EXTRA),
    numerics=st.builds(entries.NumericsEntry, WORDS, WORDS, extra=st.just({})),
    pipeline=WORDS,
    groups=st.lists(GROUPS, max_size=2).map(tuple),
    programs=st.dictionaries(WORDS, PROGRAMS, max_size=2),
    extra=EXTRA,
)


@given(MANIFESTS)
def test_from_json_is_the_inverse_of_to_json(given_manifest: Manifest) -> None:
    value = parse(dump(to_json(given_manifest)))
    read, mismatches = from_json(Manifest, value)
    assert mismatches == []
    assert read == given_manifest
    assert to_json(read) == value


def _value() -> dict[str, Any]:
    return parse(files()["manifest.json"])


def _edit(value: Any, path: list[Any], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


ARG = ["programs", "train_step", "args", 0]


@pytest.mark.parametrize(
    ("path", "new", "where", "expected"),
    [
        (["name"], 3, "$.name", "string"),
        (["fuse", "capacity"], True, "$.fuse.capacity", "integer"),
        (["fuse", "capacity"], 1.0, "$.fuse.capacity", "integer"),
        (["portable"], 1, "$.portable", "boolean"),
        ([*ARG, "role"], "parm", "$.programs.train_step.args[0].role", "one of param"),
        ([*ARG, "shape"], [3, "x"], "$.programs.train_step.args[0].shape[1]", "integer"),
        ([*ARG, "shape"], {}, "$.programs.train_step.args[0].shape", "array"),
        (["programs", "forward.b4"], 1, '$.programs["forward.b4"]', "object"),
        (["programs", "train_step", "donate", 0], [1], "$.programs.train_step.donate[0]", "of 2"),
        (["groups"], None, "$.groups", "array"),
        (["slot"], [], "$.slot", "'slots'"),
        (["fuse", "capcity"], 1, "$.fuse.capcity", "'capacity'"),
    ],
)
def test_mismatches_name_the_place(path: list[Any], new: Any, where: str, expected: str) -> None:
    value = _value()
    _edit(value, path, new)
    read, (mismatch,) = from_json(Manifest, value)
    assert read is None
    assert mismatch.path == where
    assert expected in mismatch.expected


def test_all_mismatches_are_found_at_once() -> None:
    value = _value()
    value["name"], value["portable"] = None, "yes"
    del value["fuse"]["reason"]
    found = {mismatch.path for mismatch in from_json(Manifest, value)[1]}
    assert found == {"$.name", "$.portable", "$.fuse.reason"}


def test_foreign_keys_are_kept_under_x() -> None:
    value = _value()
    value["x-team"] = {"anything": [1]}
    value["fuse"]["x-note"] = "measured"
    read, mismatches = from_json(Manifest, value)
    assert mismatches == []
    assert read is not None
    assert read.extra == {"x-team": {"anything": [1]}}
    assert to_json(read) == value


def test_every_key_of_the_format_is_written() -> None:
    assert set(to_json(manifest())) == {
        "format", "digest", "files", "name", "experiment", "fields", "options", "groups", "slots",
        "state", "programs", "fuse", "functions", "report", "guards", "batch_schema", "routing",
        "schedules", "pipeline", "numerics", "interface", "batching", "requires", "portable",
        "producer", "provenance",
    }  # fmt: skip


def test_every_field_of_a_record_is_documented() -> None:
    undocumented = [
        f"{name}.{key}"
        for name, definition in json_schema(Manifest)["$defs"].items()
        for key in definition["properties"]
        if not definition["description"]
    ]
    assert undocumented == []


def test_the_published_schema_is_the_records_own() -> None:
    assert SCHEMA.read_bytes() == dump(json_schema(Manifest)), (
        "write docs/manifest.schema.json again: nitro_runtime.canonical.dump(json_schema(Manifest))"
    )
