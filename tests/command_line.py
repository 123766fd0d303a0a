"""Commands run in this process, and an experiment small enough to build in a moment."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nitroc.cli import main

OURS = ("nitroc", "nitro_runtime", "nitro_dialect")

LINE = '''
import numpy as np
import jax.numpy as jnp
import nitroc as nt

ROWS = 16


class Line(nt.Experiment):
    """y = 2 x + 1."""

    power: nt.GraphConst[int] = 1
    scale: nt.Device[float] = 1.0
    rows: int = ROWS
    batch_size: int = 4
    max_epochs: int = 2
    learning_rate: float = 0.1

    def build_data(self):
        x = np.linspace(-1, 1, self.rows, dtype=np.float32)[:, None]
        split = {"x": x, "y": 2 * x[:, 0] + 1}
        return {
            "train": nt.data.arrays(split, self.batch_size, shuffle=True),
            "val": nt.data.arrays(split, self.batch_size),
            "test": nt.data.arrays(split, self.batch_size),
        }

    def build_model(self, key):
        return None, {"w": jnp.zeros((1, 1)), "b": jnp.zeros(1)}, {}

    def forward(self, model, params, state, *, x):
        return (x ** self.power @ params["w"] + params["b"])[:, 0] * self.scale, state

    def loss(self, outputs, *, y):
        return jnp.mean((outputs - y) ** 2)

    def metrics(self, outputs, *, y):
        return {"error": (np.abs(outputs - y).sum(), len(y))}
'''


@dataclass(frozen=True)
class Result:
    """What a command left: exit status, stdout, stderr."""

    status: int
    out: str
    err: str


def command(*arguments: object) -> Result:
    """Runs `nitroc ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    return Result(ended.value.code, out.getvalue(), err.getvalue())


def succeed(*arguments: object) -> Result:
    """Runs a command that must exit 0."""
    result = command(*arguments)
    assert result.status == 0, result.err
    return result


def write(path: Path, *changes: tuple[str, str], text: str = LINE) -> Path:
    """`text` with `changes` made in it, as the file `path`."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def own_imports() -> Iterator[None]:
    """Undoes what building and running do to this process's imports."""
    paths, finders, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    yield
    sys.path[:], sys.meta_path[:] = paths, finders
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if name.partition(".")[0] in OURS:
            continue  # imported when first used
        if "site-packages" not in file and not file.startswith(sys.base_prefix):
            sys.modules.pop(name)
