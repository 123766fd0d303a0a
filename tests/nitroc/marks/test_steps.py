"""Counts of marks through the passes: steps of several micro-batches, passes of short batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nitroc as nt

ROWS = np.arange(1, 17, dtype=np.float32)


class Stepped(nt.Experiment):
    """Batches of four rows: 1 to 4, 5 to 8, ...; those of val are negative, the last has two."""

    train_above: nt.GraphConst[float] = 99.0
    evaluate_above: nt.GraphConst[float] = 99.0

    def build_data(self) -> Any:
        return {
            "train": nt.data.arrays({"x": ROWS}, 4),
            "val": nt.data.arrays({"x": -ROWS[:6]}, 4),
        }

    def build_model(self, key: Any) -> Any:
        return None, {"w": jnp.ones(())}, {}

    def prepare(self, *, x: Any) -> Any:
        nt.guard("prepared", nt.count_where(-x > self.evaluate_above))
        return {"x": x}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any, train: bool) -> Any:
        above = self.train_above if train else self.evaluate_above
        rows = x if train else -x
        any_above = jnp.any(rows > above)

        def body(c: Any, _: Any) -> Any:
            nt.guard("carried", nt.count_where(c > above), train=train)
            nt.guard("fixed", any_above.astype(int), train=train)
            return c, None

        y = jax.checkpoint(lambda x: lax.scan(jax.checkpoint(body), x, length=3)[0])(rows)
        return jax.vmap(lambda row: nt.metric("row", row, below=above))(y) * params["w"], state

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(outputs)


def failure(tmp_path: Path, accum: int, **fields: Any) -> nt.GuardError:
    options = {"accum": accum, "run_dir": str(tmp_path / "run")}
    with pytest.raises(nt.GuardError) as raised:
        nt.train(Stepped(**fields), **options)
    return raised.value


@pytest.mark.parametrize(("accum", "step", "rows"), [(1, 2, 2), (2, 1, 2), (4, 1, 10)])
def test_D01_every_micro_batch_of_a_step(tmp_path: Path, accum: int, step: int, rows: int) -> None:
    """Rows above 6 are 7 and 8 in the second micro-batch, then 9 to 16."""
    error = failure(tmp_path, accum, train_above=6.0)
    assert (error.stage, error.step) == ("train", step)
    assert error.name == "carried"
    # three iterations each; with remat around and in the scan, forward only
    assert error.count == 3 * rows
    text = str(error)
    assert f"fixed train=true counted {3 * (1 if accum < 4 else 3)}" in text
    # what is not strictly below: 6 too
    assert f"row counted {rows + 1}" in text


def test_D01_every_batch_of_a_pass_with_its_real_rows(tmp_path: Path) -> None:
    """Six rows by four: the short batch has two, -5 and -6."""
    error = failure(tmp_path, 1, evaluate_above=4.5)
    assert (error.stage, error.split) == ("evaluate", "val")
    assert (error.name, error.count) == ("prepared", 2)
    text = str(error)
    assert "carried train=false counted 6" in text
    assert "fixed train=false counted 3" in text
    assert "row counted 2" in text
