"""`nitroc run --locate-nonfinite`: a failed step is run again, and what was not finite named."""

from pathlib import Path

import numpy as np
import pytest
from command_line import command, own_imports, succeed, write

import nitroc as nt
from nitro_runtime import replay

FORWARD = '        return (x ** self.power @ params["w"] + params["b"])[:, 0] * self.scale, state'
DATA = "        x = np.linspace(-1, 1, self.rows, dtype=np.float32)[:, None]"
LOSS = "        return jnp.mean((outputs - y) ** 2)"
SHUFFLE = ("shuffle=True", "shuffle=False")


@pytest.fixture(autouse=True)
def _imports():
    with own_imports():
        yield


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fail(*changes, build=(), run=()):
    """Builds the line experiment with `changes`, trains it until it fails, and looks."""
    trained(*changes, build=build, run=run)
    return command("run", "b", "--locate-nonfinite", "--run-dir", "r", "-q")


def trained(*changes, build=(), run=()):
    succeed("build", write(Path("exp.py"), SHUFFLE, *changes), "-o", "b", "-q", *build)
    result = command("run", "b", "--run-dir", "r", "-q", *run)
    assert result.status == 1, result.err
    return result


def line(text, path="exp.py"):
    """`exp.py:N:` of the line that holds `text`."""
    lines = Path(path).read_text().splitlines()
    (number,) = [n for n, row in enumerate(lines, 1) if text in row]
    return f"exp.py:{number}:"


def forward(text):
    return (FORWARD, f"        {text}")


def test_sqrt_at_zero_under_its_gradient(place):
    text = 'return jnp.sqrt(x @ params["w"])[:, 0] * 0 + params["b"], state'
    result = fail(forward(text))
    assert (result.status, result.err) == (0, "")
    first, stopped, nan, infinite, *rest = result.out.splitlines()
    assert first.startswith("step 1 of run ")
    assert first.endswith(f", from {Path('r', 'replay', 'step-1')}")
    assert stopped == (
        "it was stopped by E-GUARD-002: gradient of parameter w was not finite at step 1, expected "
        "a finite number"
    )
    where = line("jnp.sqrt(")
    assert nan.startswith(f"first NaN: multiply f32[4,1], {where}")
    assert nan.endswith(", in the gradient of forward")
    assert infinite.startswith(f"also: first infinity: divide f32[4,1], {where}")
    assert not rest


def test_a_column_counts_from_one_as_that_of_a_guard(place):
    text = 'return nt.guard("g", 0 * jnp.log(-x[:, 0] ** 2 - 1)[0]) + x[:, 0], state'
    result = fail(forward(text))
    column = Path("exp.py").read_text().splitlines()
    (row,) = [row for row in column if "jnp.log" in row]
    assert f"first NaN: log f32[4], {line('jnp.log')}{row.index('jnp.log') + 1}, in forward" in (
        result.out
    )
    assert f"{line('jnp.log')}{row.index('nt.guard') + 1}" in command("explain", "b").out


def test_overflow_with_no_nan_anywhere(place):
    result = fail(forward('return jnp.exp(200 * x[:, 0] ** 2 + params["b"]), state'))
    (found,) = [row for row in result.out.splitlines() if row.startswith("first ")]
    assert found.startswith(f"first infinity: exponential f32[4], {line('jnp.exp')}")


def test_nan_in_a_batch(place):
    result = fail((DATA, f"{DATA}\n        x[5] = np.nan"))
    assert result.status == 0
    assert result.out.splitlines()[2:] == [
        "first NaN: batch field x f32[4,1], 1 of 4 elements, the first at [1, 0], before any "
        "operation",
        "also: another NaN: batch field y f32[4], 1 of 4 elements, the first at [1], before any "
        "operation",
    ]


def test_a_parameter_that_is_nan(place):
    result = fail(('"w": jnp.zeros((1, 1))', '"w": jnp.full((1, 1), jnp.nan)'))
    assert result.status == 0
    assert result.out.splitlines()[2] == (
        "first NaN: parameter w f32[1,1], 1 of 1 elements, the first at [0, 0], before any "
        "operation"
    )


def test_a_device_field_that_is_infinite(place):
    result = fail(run=["--set", "scale=inf"])
    assert result.status == 0
    found = result.out.splitlines()[2:]
    assert found[0] == "first infinity: Device field scale f32, before any operation"
    # 0 * inf
    assert found[1].startswith(f"also: first NaN: multiply f32[4], {line('self.scale')}")


def test_the_second_micro_batch_of_two(place):
    text = 'return jnp.log(x[:, 0] + 1.5) * params["w"][0] + params["b"], state'
    result = fail((DATA, f"{DATA}\n        x[6] = -2"), forward(text), build=["--accum", 2])
    assert result.status == 0
    found = result.out.splitlines()[2]
    assert found.startswith(f"first NaN: log f32[4], {line('jnp.log')}")
    assert found.endswith(", in forward, micro-batch 2 of 2")


def test_the_state_of_a_micro_batch_is_what_the_one_before_made(place):
    state = ('{"w": jnp.zeros((1, 1)), "b": jnp.zeros(1)}, {}', '{"w": jnp.zeros((1, 1)), "b": '
             'jnp.zeros(1)}, {"n": jnp.ones(())}')  # fmt: skip
    text = 'return x[:, 0] * params["w"][0] + jnp.log(state["n"]), {"n": state["n"] - 1}'
    result = fail(state, forward(text), build=["--accum", 4])
    found = result.out.splitlines()[2]
    # 1, 0, -1: log(0) is an infinity of the second, log(-1) a NaN of the third
    assert found.startswith("first NaN: ")
    assert "micro-batch 2 of 4" in result.out
    assert "first infinity: log f32, " in result.out


def test_an_operation_that_reads_a_parameter(place):
    result = fail(forward('return (x * jnp.inf @ params["w"])[:, 0], state'))
    (nan,) = [row for row in result.out.splitlines() if row.startswith("first NaN: ")]
    assert nan.startswith(f"first NaN: dot_general f32[4,1], {line('jnp.inf')}")
    assert nan.endswith(", in forward, reads w")


def test_a_guard_of_a_step_that_is_finite(place):
    guarded = (
        "        return jnp.mean(",
        '        nt.guard("many", y.size)\n        return jnp.mean(',
    )
    result = fail(guarded)
    assert result.status == 1
    assert result.out.splitlines()[1:] == [
        "it was stopped by E-GUARD-001: guard many counted 4 at step 1, expected 0",
        "it is stopped here too: guard many counted 4",
        "everything is finite: what its functions are given, every operation, the loss and the "
        "gradient",
    ]


def test_a_sum_over_micro_batches_that_overflows_is_made_after_the_functions(place):
    result = fail((LOSS, f"{LOSS} * 0 + 3e38"), build=["--accum", 2])
    assert result.status == 1
    assert result.out.splitlines()[2:] == [
        "it fails here too: the loss was inf",
        "every operation of its functions is finite, and so is all they are given: what is not is "
        "made after them, by accumulation, the norm of the gradient, clip or the optimizer",
    ]


def test_a_step_that_comes_out_finite(place):
    trained((DATA, f"{DATA}\n        x[2] = np.nan"))
    stored = replay.read(replay.newest("r"))
    batch = {name: np.nan_to_num(array) for name, array in stored.batch.items()}
    replay.write(Path("mended"), replay.Replay(stored.state, batch, stored.record))
    result = command("run", "b", "--locate-nonfinite", "--run-dir", "mended")
    assert result.status == 1
    assert result.out.splitlines()[2].startswith("it comes out finite here: it is committed, loss ")


def test_a_mask_of_minus_infinity_and_a_nan_elsewhere(place):
    text = """scores = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), x @ x.T, -jnp.inf)
        weights = jax.nn.softmax(scores)
        return (weights @ jnp.sqrt(x - 5))[:, 0] * params["b"], state"""
    result = fail(("import numpy as np", "import jax\nimport numpy as np"), forward(text))
    found = result.out.splitlines()[2:]
    assert found[0].startswith(f"first NaN: sqrt f32[4,1], {line('jnp.sqrt')}")
    assert "inf" not in "".join(found)


def test_a_literal_that_assert_finite_finds(place):
    text = """scores = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), x @ x.T, -jnp.inf)
        nt.assert_finite("scores", scores)
        return x[:, 0] * params["b"], state"""
    result = fail(forward(text))
    assert result.status == 0
    assert result.out.splitlines()[2].startswith(
        f"first infinity: select f32[4,4], {line('jnp.where')}"
    )


def test_a_sampled_step(place):
    text = """h = nt.diagnostic("h", jnp.log(x[0, 0] - 3), above=0.0)
        return x[:, 0] * params["b"], state"""
    result = fail(forward(text), run=["--diagnostics", "h", "--sample-every", 2])
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("step 2 of run ")
    assert lines[2].startswith(f"first NaN: log f32, {line('jnp.log')}")


def test_a_bundle_without_locations(place):
    result = fail(forward('return jnp.sqrt(x @ params["w"])[:, 0], state'), build=["--strip-locs"])
    assert result.status == 0
    found = result.out.splitlines()[2:]
    assert found[0] == "first infinity: divide f32[4,1]"
    assert found[-1] == "the bundle has no lines: it was built with --strip-locs"


def test_the_experiment_s_python_is_not_imported(place, monkeypatch):
    trained(forward('return jnp.sqrt(x @ params["w"])[:, 0], state'))
    monkeypatch.setattr("nitroc.sources.load_carried", None)
    located = nt.locate_nonfinite("b", "r")
    assert located.found
    assert [one.name for one in located.findings] == ["divide"]
    assert located.findings[0].source.startswith(line("jnp.sqrt"))
    assert located.text().splitlines()[2] == located.findings[0].text(1)


def test_what_is_refused(place):
    trained(forward('return jnp.sqrt(x @ params["w"])[:, 0], state'))
    result = command("run", "b", "--locate-nonfinite")
    assert result.status == 2
    assert "E-USAGE-041" in result.err
    result = command("run", "b", "--locate-nonfinite", "--run-dir", "r", "--epochs", 3)
    assert result.status == 2
    assert "E-USAGE-037: --epochs with --locate-nonfinite" in result.err
    result = command("run", "b", "--locate-nonfinite", "--run-dir", "elsewhere")
    assert result.status == 1
    assert "E-RUN-008: elsewhere has no replay of a failed step" in result.err
    succeed("build", write(Path("other.py"), SHUFFLE), "-o", "other", "-q")
    result = command("run", "other", "--locate-nonfinite", "--run-dir", "r")
    assert result.status == 1
    digests = [nt.verify(name)[1].removeprefix("digest ") for name in ("b", "other")]
    assert f"E-RUN-009: the step was made by the bundle {digests[0]}, this one is {digests[1]}" in (
        result.err
    )
    Path("r", "replay", "step-1", "batch.safetensors").write_bytes(b"cut")
    result = command("run", "b", "--locate-nonfinite", "--run-dir", "r")
    assert result.status == 1
    assert "E-RUN-007" in result.err
