"""Devices and backends, signals while compiling, and each private name relied upon."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.core import ShapedArray
from jaxlib import _jax, xla_client

from nitro_runtime import pjrt
from nitro_runtime.errors import DeviceError
from nitro_runtime.interruptible import interruptible

from .programs import STEP

DEVICE = pjrt.devices("cpu")[0]


def run_python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=120,
    )


def test_the_devices_of_a_platform():
    assert {d.platform for d in pjrt.devices("cpu")} == {"cpu"}
    assert pjrt.platforms()[0] == pjrt.devices()[0].platform
    assert "cpu" in pjrt.platforms()


def test_an_unknown_backend_is_refused_listing_those_there_are():
    with pytest.raises(DeviceError) as caught:
        pjrt.devices("abacus")
    assert caught.value.code == "E-DEVICE-020"
    assert caught.value.exit == 4
    assert "'abacus'" in caught.value.what
    assert "cpu" in (caught.value.help or "")


def test_no_backend_at_all_is_named():
    code = (
        "from nitro_runtime import pjrt\ntry: pjrt.devices()\nexcept Exception as e: print(e.code)"
    )
    done = run_python(code, JAX_PLATFORMS="abacus")
    assert done.stdout.strip() == "E-DEVICE-021"


def test_a_fingerprint_names_what_decides_the_machine_code(monkeypatch):
    before = pjrt.fingerprint(DEVICE)
    assert {"platform", "jaxlib", "cpu features", "compile options", "XLA_FLAGS"} <= set(before)
    assert before == pjrt.fingerprint(DEVICE)
    monkeypatch.setenv("XLA_FLAGS", "--something")
    assert pjrt.fingerprint(DEVICE) != before
    monkeypatch.setenv("NITRO_ANYTHING", "1")
    monkeypatch.delenv("XLA_FLAGS")
    assert pjrt.fingerprint(DEVICE) == before


def test_malloc_is_tuned_where_it_is_glibc():
    tuned = run_python("from nitro_runtime import pjrt; print(pjrt.tune_malloc())")
    glibc = sys.platform == "linux" and os.confstr_names.get("CS_GNU_LIBC_VERSION") is not None
    assert tuned.stdout.strip() == str(glibc)


EIGHT = """
import numpy as np
from nitro_runtime import pjrt
from nitro_runtime.errors import DeviceError
from nitro_runtime.interruptible import interruptible
from test_pjrt_programs import step
devices = pjrt.devices("cpu")
assert len(devices) == 8, devices
run = step(devices[3])
ones = np.ones(4, np.float32)
def place(device): return [pjrt.put(v, device) for v in (ones, ones, np.int64(1))]
out = run(place(devices[3]))
assert pjrt.read(out[0]).tolist() == [2, 2, 2, 2]
assert out[0].devices() == {devices[3]}
try: run(place(devices[0]))
except DeviceError as error: print(error)
again = pjrt.deserialize(run.serialize(), devices[3], run.args, run.results, donate=run.donate)
assert pjrt.read(again(place(devices[3]))[0]).tolist() == [2, 2, 2, 2]
"""


def test_a_program_runs_on_its_device_and_refuses_arrays_of_another(tmp_path):
    here = Path(__file__).parent
    (tmp_path / "test_pjrt_programs.py").write_text((here / "programs.py").read_text())
    done = run_python(
        EIGHT,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        PYTHONPATH=str(tmp_path),
    )
    assert "E-DEVICE-024" in done.stdout, done.stderr
    assert "argument 'p'" in done.stdout
    assert done.returncode == 0, done.stderr


def test_work_off_the_main_thread_polls_and_hands_on_results_and_errors():
    names = []

    def work():
        names.append(threading.current_thread().name)
        return 7

    assert interruptible(work) == 7
    assert names == ["nitro-compile"]
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


def test_what_poll_raises_ends_the_wait():
    release = threading.Event()

    def poll():
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        interruptible(lambda: release.wait(30), poll)
    release.set()


INTERRUPTED = """
import os, signal, threading, time
from nitro_runtime import pjrt
device = pjrt.devices("cpu")[0]
lines, last = [], "%a"
for i in range(6000):
    op = ("sine", "tanh", "cosine")[i % 3]
    lines.append(f"%v{i} = stablehlo.{op} {last} : tensor<64x64xf32>")
    lines.append(f"%w{i} = stablehlo.dot_general %v{i}, %a, contracting_dims = [1] x [0] "
                 ": (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>")
    last = f"%w{i}"
text = ("module @m { func.func public @main(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {"
        + "\\n".join(lines) + f"\\n return {last} : tensor<64x64xf32> }} }}")
def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    pjrt.compile(text, device, (), ())
    print("compiled")
except KeyboardInterrupt:
    print("interrupted", any(t.name == "nitro-compile" for t in threading.enumerate()))
"""


def test_ctrl_c_works_while_a_program_compiles():
    done = run_python(INTERRUPTED)
    assert done.stdout.split() == ["interrupted", "True"], done.stdout + done.stderr
    # Compiling may end before the process does.
    assert done.returncode in (0, 130), done.stderr


LEFT = """
import threading
from nitro_runtime.interruptible import interruptible
def poll():
    raise {error}
interruptible(threading.Event().wait, poll)
"""


@pytest.mark.parametrize(
    ("error", "status"), [("KeyboardInterrupt", 130), ("SystemExit(143)", 143), ("ValueError", 1)]
)
def test_a_process_left_while_compiling_ends_with_the_status_of_its_error(error, status):
    assert run_python(LEFT.format(error=error)).returncode == status


# Each private name of jaxlib that pjrt.py uses, and what it relies on.


def test_contract_batched_device_put():
    aval = ShapedArray((2,), np.dtype(np.int64))
    sharding = jax.sharding.SingleDeviceSharding(DEVICE)
    copy = _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    x = np.array([2**40, 1])
    placed = _jax.batched_device_put(aval, sharding, [x], [DEVICE], True, False, copy, True)
    x[:] = 0
    assert np.asarray(placed).tolist() == [2**40, 1]
    assert placed.aval is aval
    assert placed.sharding is sharding
    assert isinstance(placed, _jax.ArrayImpl)


def test_contract_compile_execute_and_handlers():
    devices = xla_client.DeviceList((DEVICE,))
    loaded = DEVICE.client.compile_and_load(STEP.encode(), devices, xla_client.CompileOptions())
    sharding = jax.sharding.SingleDeviceSharding(DEVICE)
    avals = [ShapedArray((4,), np.dtype(np.float32)), ShapedArray((), np.dtype(np.int64))]
    handlers = [_jax.array_result_handler(a, sharding, True, **pjrt.UNCHECKED) for a in avals]
    values = (np.ones(4, np.float32), np.ones(4, np.float32), np.int64(3))
    results = loaded.execute_sharded([pjrt.put(v, DEVICE) for v in values])
    p, n = results.consume_with_handlers(handlers)
    assert [p.aval is avals[0], n.aval is avals[1]] == [True, True]
    assert p.sharding is sharding
    assert np.asarray(n) == 6


def test_contract_serialize_and_deserialize():
    devices = xla_client.DeviceList((DEVICE,))
    options = xla_client.CompileOptions()
    loaded = DEVICE.client.compile_and_load(STEP.encode(), devices, options)
    stored = DEVICE.client.serialize_executable(loaded)
    assert isinstance(stored, bytes)
    assert loaded.client is DEVICE.client
    with pytest.raises(_jax.JaxRuntimeError):
        DEVICE.client.deserialize_executable(b"junk", devices, options)


def test_contract_compile_options_are_equal_bytes():
    first, second = (xla_client.CompileOptions().SerializeAsString() for _ in range(2))
    assert first == second


def test_contract_device_assignment():
    options = xla_client.CompileOptions()
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[DEVICE.id]]))
    assert options.device_assignment is not None


def test_contract_memory_stats():
    devices = xla_client.DeviceList((DEVICE,))
    loaded = DEVICE.client.compile_and_load(STEP.encode(), devices, xla_client.CompileOptions())
    stats = loaded.get_compiled_memory_stats()
    for name in ("argument", "output", "alias", "temp"):
        assert getattr(stats, f"{name}_size_in_bytes") >= 0
    assert stats.peak_memory_in_bytes > 0


def test_contract_topology_and_versions():
    topology = xla_client.get_topology_for_devices([DEVICE])
    assert topology.fingerprint() == topology.fingerprint()
    assert DEVICE.client.platform_version
    assert DEVICE.device_kind
    assert issubclass(_jax.JaxRuntimeError, RuntimeError)
