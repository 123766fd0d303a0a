"""Commands that use bundles, as functions (`nitroc run` is `nt.run`); no compiler is imported."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nitro_runtime.bundle import Bundle
from nitro_runtime.durable import replace_file
from nitro_runtime.errors import DataError, UsageError
from nitro_runtime.host import HostHooks
from nitro_runtime.options import RunOptions
from nitro_runtime.recorded import recorded_host
from nitro_runtime.trees import flatten
from nitroc.handle import Nitro
from nitroc.opening import Settings, open_bundle, read_number


def run(
    bundle: str | Path,
    *,
    settings: Settings | None = None,
    data_file: str | Path | None = None,
    quiet: bool = False,
    backend: str | None = None,
    **options: Any,
) -> Nitro:
    """Trains a bundle and returns its handle."""
    return _open(bundle, settings, data_file, quiet, backend, options).train()


def evaluate(
    bundle: str | Path,
    *,
    checkpoint: str | Path,
    split: str = "test",
    settings: Settings | None = None,
    data_file: str | Path | None = None,
    quiet: bool = False,
    backend: str | None = None,
) -> dict[str, Any]:
    """The metrics of one split under a checkpoint's weights."""
    options = {"checkpoint": checkpoint}
    return _open(bundle, settings, data_file, quiet, backend, options).evaluate(split)


def _open(
    bundle: str | Path,
    settings: Settings | None,
    data_file: str | Path | None,
    quiet: bool,
    backend: str | None,
    options: Mapping[str, Any],
) -> Nitro:
    given = dict(options)
    if data_file is not None:
        given["data"] = read_splits(data_file)
    return open_bundle(bundle, settings=settings, quiet=quiet, backend=backend, **given)


def predict(
    bundle: str | Path,
    *,
    checkpoint: str | Path,
    input_file: str | Path,
    output: str | Path,
    settings: Settings | None = None,
    quiet: bool = False,
    backend: str | None = None,
) -> None:
    """Writes `forward`'s outputs for the arrays of `input_file`; no Python of the bundle runs.

    A bare output array is called `outputs`, others by their path.
    """
    opened = Bundle.open(bundle)
    host: HostHooks = recorded_host(opened, {})
    options = RunOptions(checkpoint=checkpoint, quiet=quiet, backend=backend)
    handle = Nitro.of_bundle(opened, host, options)
    for name, text in (settings or {}).items():
        handle.set_device(**{name: read_number(name, text)})
    outputs = handle.predict(read_arrays(input_file))
    _, leaves = flatten(outputs)
    named = {"outputs" if path == "@" else path: leaf for path, leaf in leaves.items()}
    _write_arrays(Path(output), named)


def read_splits(file: str | Path) -> dict[str, dict[str, np.ndarray]]:
    """The splits of an npz: keys `split/field`, or fields of `train` alone."""
    splits: dict[str, dict[str, np.ndarray]] = {}
    for key, array in read_arrays(file).items():
        split, slash, name = key.partition("/")
        splits.setdefault(split if slash else "train", {})[name if slash else key] = array
    return splits


def read_arrays(file: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an npz; E-DATA-090 when it is none, or holds objects."""
    try:
        with Path(file).open("rb") as opened:
            if not zipfile.is_zipfile(opened):
                raise ValueError("it is no zip archive")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as stored:
                return {name: _array(name, stored[name]) for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            90,
            f"{file} is no npz of plain arrays: {getattr(error, 'strerror', None) or error}",
            help="write it with numpy.savez(file, field=array)",
        ) from error


def _array(name: str, value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"its member {name} is no array")
    return value


def _write_arrays(path: Path, named: Mapping[str, np.ndarray]) -> None:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **named)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content.getvalue())  # a pipe or a device is no file to replace
        else:
            replace_file(path.resolve(), content.getvalue())
    except OSError as error:
        raise UsageError(
            40,
            f"the outputs can't be written: {error.strerror}",
            where=str(path),
            help="name a file in a directory that can be written: -o y.npz",
        ) from error
