"""Executables: what is checked before a call, donation, storing, and jax.jit as the oracle."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from nitro_runtime import pjrt
from nitro_runtime.errors import DeviceError

from .programs import STEP_ARGS, STEP_RESULTS, Entry, step

DEVICE = pjrt.devices("cpu")[0]


@pytest.fixture(scope="module")
def run():
    return step(DEVICE)


def arguments():
    ones = np.ones(4, np.float32)
    return [pjrt.put(v, DEVICE) for v in (ones, 2 * ones, np.int64(2**40))]


def refused(run, number, buffers):
    with pytest.raises(DeviceError) as caught:
        run(buffers)
    assert caught.value.code == f"E-DEVICE-{number:03d}"
    return str(caught.value)


def test_a_call_gives_its_results_and_consumes_what_is_donated(run):
    p, x, n = arguments()
    q, m = run([p, x, n])
    assert pjrt.read(q).tolist() == [3, 3, 3, 3]
    assert pjrt.read(m) == 2**41
    assert [a.is_deleted() for a in (p, x, n)] == [True, False, False]


def test_results_go_in_again_even_after_being_read(run):
    p, x, n = arguments()
    for _ in range(3):
        p, n = run([p, x, n])
        pjrt.read(p)
    assert pjrt.read(p).tolist() == [7, 7, 7, 7]
    assert pjrt.read(n) == 2**43


def test_a_donated_buffer_that_numpy_views_is_gone_and_the_view_unharmed(run):
    p, x, n = arguments()
    view = np.asarray(p)
    run([p, x, n])
    assert p.is_deleted()
    assert view.tolist() == [1, 1, 1, 1]


def test_a_wrong_count_is_refused(run):
    buffers = arguments()
    assert "3 arguments expected, 2 found" in refused(run, 22, buffers[:2])
    refused(run, 22, [*buffers, buffers[1]])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.ones(4, np.int32), "i32[4]"),
        (np.ones((2, 2), np.float32), "f32[2,2]"),
        (np.ones(3, np.float32), "f32[3]"),
        (np.float32(1), "f32"),
    ],
)
def test_another_dtype_or_shape_of_equal_size_is_refused_by_name(run, value, found):
    p, _, n = arguments()
    message = refused(run, 23, [p, pjrt.put(value, DEVICE), n])
    assert f"f32[4] expected, {found} found; argument 'x'" in message
    assert not p.is_deleted()


def test_a_deleted_argument_is_refused_by_name(run):
    p, x, n = arguments()
    pjrt.delete(x)
    assert "'x'" in refused(run, 25, [p, x, n])
    p, x, n = arguments()
    run([p, x, n])
    assert "'p'" in refused(run, 25, [p, x, n])


def test_one_buffer_donated_and_read_is_refused_naming_both(run):
    p, _, n = arguments()
    assert "'p' and 'x'" in refused(run, 26, [p, p, n])
    assert not p.is_deleted()


def test_two_arrays_of_one_buffer_are_refused_too(run):
    p, _, n = arguments()
    refused(run, 29, [p, p.addressable_data(0), n])


def test_one_buffer_donated_twice_is_refused():
    text = """module @m { func.func public @main(%p: tensor<4xf32> {tf.aliasing_output = 0 : i32},
      %q: tensor<4xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<4xf32>, tensor<4xf32>) {
      return %p, %q : tensor<4xf32>, tensor<4xf32> } }"""
    pair = (Entry("p"), Entry("q"))
    both = pjrt.compile(text, DEVICE, pair, pair, donate=[(0, 0), (1, 1)])
    p = arguments()[0]
    refused(both, 26, [p, p])
    p, q = both(arguments()[:2])
    assert pjrt.read(q).tolist() == [2, 2, 2, 2]


def test_one_buffer_read_twice_is_fine():
    text = """module @m { func.func public @main(%p: tensor<4xf32>, %q: tensor<4xf32>)
      -> tensor<4xf32> { %r = stablehlo.add %p, %q : tensor<4xf32>
      return %r : tensor<4xf32> } }"""
    add = pjrt.compile(text, DEVICE, (Entry("p"), Entry("q")), (Entry("r"),))
    p = arguments()[0]
    assert pjrt.read(add([p, p])[0]).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("thing", [np.ones(4, np.float32), 1.0, None])
def test_what_is_no_device_array_is_refused(run, thing):
    p, _, n = arguments()
    assert "'x'" in refused(run, 31, [p, thing, n])


def test_a_weakly_typed_array_of_the_right_dtype_is_taken(run):
    p, _, n = arguments()
    weak = jnp.full(4, 2.0)
    assert pjrt.read(run([p, weak, n])[0]).tolist() == [3, 3, 3, 3]


def test_a_program_the_backend_refuses_is_named():
    with pytest.raises(DeviceError, match="E-DEVICE-027"):
        pjrt.compile("module @m { broken }", DEVICE, (), ())


def test_memory_counts_arguments_results_and_donation(run):
    memory = run.memory()
    assert memory is not None
    assert (memory.arguments, memory.aliased) == (40, 16)
    assert memory.peak <= memory.arguments + memory.results + memory.temporaries


def test_a_stored_executable_gives_the_same_results(run):
    again = pjrt.deserialize(run.serialize(), DEVICE, STEP_ARGS, STEP_RESULTS, donate=run.donate)
    p, x, n = arguments()
    q, _ = again([p, x, n])
    assert pjrt.read(q).tolist() == [3, 3, 3, 3]
    assert p.is_deleted()


def test_bytes_that_are_no_executable_are_refused():
    with pytest.raises(DeviceError, match="E-DEVICE-028"):
        pjrt.deserialize(b"junk", DEVICE, (), ())


def test_results_can_be_waited_for(run):
    results = run(arguments())
    pjrt.wait(results)
    assert all(r.is_ready() for r in results)


def network(w, b, seed, x):
    """A gradient step with convolution, products, random bits, a loop and reductions."""

    def loss(w, b):
        h = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
        keep = jax.random.bernoulli(jax.random.wrap_key_data(seed), 0.8, h.shape)
        h = jnp.where(keep, jnp.tanh(h), 0).reshape(x.shape[0], -1)
        out = jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) @ b, h @ b[: h.shape[1]])
        return jax.nn.logsumexp(out)

    gw, gb = jax.grad(loss, (0, 1))(w, b)
    return w - 0.1 * gw, b - 0.1 * gb, loss(w, b)


def values():
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        rng.normal(size=(256, 256)).astype(np.float32),
        np.array([1, 2], np.uint32),
        rng.normal(size=(2, 3, 8, 8)).astype(np.float32),
    )


def test_the_artifact_run_by_jax_jit_gives_the_same_bits():
    arrays = values()
    exported = export.export(jax.jit(network))(*arrays)
    artifact = exported.mlir_module_serialized
    args = [Entry(n, d, a.shape) for n, d, a in zip("wbsx", DTYPES, arrays, strict=True)]
    results = [
        Entry("w", "f32", (4, 3, 3, 3)),
        Entry("b", "f32", (256, 256)),
        Entry("l", "f32", ()),
    ]
    ours = pjrt.compile(artifact, DEVICE, args, results)
    stored = pjrt.deserialize(ours.serialize(), DEVICE, args, results)
    theirs = jax.jit(dataclasses.replace(exported, fun_name="train_step").call)
    for _ in range(2):
        wanted = [np.asarray(r) for r in theirs(*arrays)]
        for executable in (ours, stored):
            placed = [pjrt.put(a, DEVICE) for a in arrays]
            found = [pjrt.read(r) for r in executable(placed)]
            assert [f.tobytes() for f in found] == [w.tobytes() for w in wanted]
        arrays = (wanted[0], wanted[1], *arrays[2:])


DTYPES = ("f32", "f32", "ui32", "f32")
