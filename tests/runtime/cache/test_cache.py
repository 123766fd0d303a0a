"""The cache: what hits, what misses, what a bad entry does, across processes too."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from nitro_runtime import cache, pjrt
from nitro_runtime.errors import DeviceError

TEXT = """module @m {{ func.func public @main(%a: tensor<4xf32> {{tf.aliasing_output = 0 : i32}},
  %b: tensor<4xf32>) -> tensor<4xf32> {{
    %c = stablehlo.constant dense<{value}> : tensor<4xf32>
    %d = stablehlo.multiply %b, %c : tensor<4xf32>
    %e = stablehlo.tanh %d : tensor<4xf32>
    %f = stablehlo.add %a, %e : tensor<4xf32>
    return %f : tensor<4xf32> }} }}"""


@dataclass(frozen=True)
class Entry:
    name: str
    dtype: str = "f32"
    shape: tuple[int, ...] = (4,)


def program(value=2.0, **ingredients):
    text = TEXT.format(value=float(value))
    named = {"program": "train_step", "GraphConst value": str(value)} | ingredients
    args = (Entry("a"), Entry("b"))
    return cache.Program(text, text.encode(), named, args, (Entry("r"),), [(0, 0)])


DEVICE = pjrt.devices("cpu")[0]


def run(executable):
    a, b = (pjrt.put(np.arange(4, dtype=np.float32) + i, DEVICE) for i in (0, 1))
    return pjrt.read(executable([a, b])[0])


def entries(directory):
    return sorted(directory.glob("*.executable"))


def unsaid(line):
    pytest.fail(f"nothing was to be said, but: {line}")


def test_B01_the_second_lookup_of_a_program_is_a_hit_in_memory(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    first = kept.get(program(), DEVICE, say=unsaid)
    assert kept.get(program(), DEVICE, say=unsaid) is first
    stats = kept.stats()
    assert (stats["hits"], stats["misses"], stats["entries"]) == (1, 1, 1)
    assert stats["by_source"] == {"memory": 1, "disk": 0, "compiled": 1}
    assert stats["reasons"] == ["train_step: first use"]


def test_B02_a_change_of_the_program_is_a_miss_with_its_reason(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    kept.get(program(2), DEVICE, say=unsaid)
    kept.get(program(3), DEVICE, say=unsaid)
    assert kept.stats()["reasons"][1] == "train_step: GraphConst value 2 -> 3"


def test_B02_what_is_no_part_of_the_program_is_no_miss(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    kept.get(program(), DEVICE, say=unsaid)
    kept.get(program(seed="7"), DEVICE, say=unsaid)
    assert kept.stats()["misses"] == 1


def test_arguments_keep_the_names_of_the_program_that_asks(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    kept.get(program(), DEVICE, say=unsaid)
    other = replace(program(), args=(Entry("p"), Entry("q")))
    with pytest.raises(DeviceError, match="argument 'p'"):
        kept.get(other, DEVICE, say=unsaid)([np.zeros(4), np.zeros(4)])
    assert kept.stats()["misses"] == 1


def test_a_stored_program_is_loaded_and_gives_the_same_bits(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    wanted = run(kept.get(program(), DEVICE, say=unsaid))
    kept.reset()
    assert kept.stats()["entries"] == 0
    found = run(kept.get(program(), DEVICE, say=unsaid))
    assert found.tobytes() == wanted.tobytes()
    assert kept.stats()["by_source"] == {"memory": 0, "disk": 1, "compiled": 0}


def test_reset_of_the_disk_deletes_entries_and_nothing_else(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    kept.get(program(), DEVICE, say=unsaid)
    (tmp_path / "notes.txt").write_text("mine")
    kept.reset(disk=True)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    kept.get(program(), DEVICE, say=unsaid)
    assert kept.stats()["reasons"] == ["train_step: first use"]


def flip(content):
    middle = len(content) * 3 // 4
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def other_format(content):
    head, _, rest = content.partition(b"\n")
    return json.dumps(json.loads(head) | {"format": 99}).encode() + b"\n" + rest


def other_key(content):
    head, _, rest = content.partition(b"\n")
    return json.dumps(json.loads(head) | {"key": "0"}).encode() + b"\n" + rest


def not_an_executable(content):
    head = json.loads(content.partition(b"\n")[0])
    head["sha256"] = hashlib.sha256(b"junk").hexdigest()
    return json.dumps(head).encode() + b"\njunk"


@pytest.mark.parametrize(
    "damage",
    [flip, other_format, other_key, not_an_executable, lambda c: b"", lambda c: c[:-9]],
    ids=["flipped", "format", "key", "junk", "empty", "cut"],
)
def test_a_damaged_or_foreign_entry_is_compiled_again_and_said_once(tmp_path, damage):
    kept = cache.ExecutableCache(tmp_path)
    wanted = run(kept.get(program(), DEVICE, say=unsaid))
    kept.reset()
    (entry,) = entries(tmp_path)
    entry.write_bytes(damage(entry.read_bytes()))
    said = []
    found = run(kept.get(program(), DEVICE, say=said.append))
    assert found.tobytes() == wanted.tobytes()
    assert len(said) == 1
    assert "again" in said[0]
    assert kept.stats()["reasons"] == ["train_step: stored entry unusable"]
    kept.reset()
    kept.get(program(), DEVICE, say=unsaid)
    assert kept.stats()["by_source"]["disk"] == 1


def test_a_directory_that_others_write_to_is_not_used(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    kept.get(program(), DEVICE, say=unsaid)
    kept.reset()
    tmp_path.chmod(0o777)
    said = []
    kept.get(program(), DEVICE, say=said.append)
    assert kept.stats()["misses"] == 1
    assert len(said) == 1
    assert "others may write" in said[0]


def test_a_directory_that_cannot_be_made_is_said_and_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    said = []
    kept = cache.ExecutableCache(tmp_path / "file" / "cache")
    run(kept.get(program(), DEVICE, say=said.append))
    assert len(said) == 1


def test_a_store_leaves_no_temporary_file(tmp_path):
    cache.ExecutableCache(tmp_path).get(program(), DEVICE, say=unsaid)
    assert list(tmp_path.iterdir()) == entries(tmp_path)
    assert len(entries(tmp_path)) == 1


def test_a_program_that_does_not_compile_is_no_entry(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    broken = replace(program(), artifact=b"junk")
    with pytest.raises(DeviceError, match="E-DEVICE-027"):
        kept.get(broken, DEVICE, say=unsaid)
    assert kept.stats()["entries"] == 0
    assert not entries(tmp_path)


def test_many_threads_that_ask_at_once_compile_once(tmp_path):
    kept = cache.ExecutableCache(tmp_path)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(kept.get(program(), DEVICE, say=unsaid)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert kept.stats()["misses"] == 1


def test_the_default_directory_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.ExecutableCache().directory == tmp_path / "nitroc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.ExecutableCache().directory == Path("/home/someone/.cache/nitroc")


def test_the_process_has_one_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.cache_reset(disk=True)
    cache.CACHE.get(program(), DEVICE)
    assert cache.cache_stats()["misses"] == 1
    cache.cache_reset()
    assert cache.cache_stats()["entries"] == 0


CHILD = """
import hashlib, json, sys
sys.path.insert(0, {here!r})
import test_cache as t
from pathlib import Path
from nitro_runtime import cache
kept = cache.ExecutableCache(Path({directory!r}))
out = t.run(kept.get(t.program({value}), t.DEVICE, say=t.unsaid))
print(json.dumps([out.tobytes().hex(), kept.stats()]))
"""


def child(directory, value, **env):
    code = CHILD.format(here=str(Path(__file__).parent), directory=str(directory), value=value)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
    )
    return json.loads(done.stdout)


def test_processes_share_entries_bits_and_reasons(tmp_path):
    wanted, stats = child(tmp_path, 2)
    assert stats["by_source"]["compiled"] == 1
    kept = cache.ExecutableCache(tmp_path)
    assert run(kept.get(program(2), DEVICE, say=unsaid)).tobytes().hex() == wanted
    assert kept.stats()["by_source"]["disk"] == 1
    _, stats = child(tmp_path, 3)
    assert stats["reasons"] == ["train_step: GraphConst value 2 -> 3"]


def test_XLA_FLAGS_are_part_of_the_key(tmp_path):
    cache.ExecutableCache(tmp_path).get(program(2), DEVICE, say=unsaid)
    _, stats = child(tmp_path, 2, XLA_FLAGS="--xla_cpu_enable_fast_math=true")
    assert stats["misses"] == 1
    assert "XLA_FLAGS" in stats["reasons"][0]
