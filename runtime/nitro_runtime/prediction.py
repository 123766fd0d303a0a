"""Prediction: any number of rows, run at one compiled width, exactly the real rows back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.data.schema import as_numeric, describe, narrow
from nitro_runtime.data.source import begin, indexed
from nitro_runtime.dtypes import ir_dtype, np_dtype
from nitro_runtime.errors import DataError, near
from nitro_runtime.evaluation import context_of, place_context
from nitro_runtime.machine import Machine, batch_args, field_of
from nitro_runtime.manifest import ArgEntry
from nitro_runtime.scalars import Scalars
from nitro_runtime.staging import fill
from nitro_runtime.trees import TreeSpec, unflatten
from nitro_runtime.widths import Widths

SPLIT = "predict"


class Predictor:
    """Forward at the widest compiled width; a last chunk is filled up and cut again."""

    def __init__(self, machine: Machine, scalars: Scalars) -> None:
        self._machine = machine
        self._scalars = scalars
        self._widths = Widths(machine.manifest, counted=False)
        self._spec = TreeSpec.from_json(machine.manifest.interface.outputs)

    def __call__(self, data: Any) -> Any:
        """Outputs of a batch, as numpy; of an iterable of batches, a lazy iterator of outputs.

        E-DATA-062 to -064, and -061 for fields of different lengths.
        """
        if isinstance(data, Mapping):
            return self._batch(cast("Mapping[str, Any]", data))
        if hasattr(data, "shape") or isinstance(data, str | bytes | int | float):
            raise self._not_a_batch(data)
        if not isinstance(data, Iterable) and not hasattr(data, "batch_at"):
            raise self._not_a_batch(data)
        return self._each(cast("Iterable[Any]", data))

    def _each(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches if hasattr(batches, "__iter__") else _addressed(batches):
            if not isinstance(batch, Mapping):
                raise self._not_a_batch(batch)
            yield self._batch(cast("Mapping[str, Any]", batch))

    def _not_a_batch(self, data: Any) -> DataError:
        fields = ", ".join(f"{field_of(arg)}: {_row(arg)}" for arg in self._args())
        return DataError(
            64,
            f"a prediction takes a dict of fields, found {describe(data)}",
            where="predict",
            help=f"the fields are {{{fields}}}, each with the batch axis first",
        )

    def _args(self) -> list[ArgEntry]:
        width = self._widths.predict_width()
        name = self._widths.plan(width, width).forward
        return batch_args(self._machine.bundle.program(name))

    def _batch(self, batch: Mapping[str, Any]) -> Any:
        arrays = {field_of(arg): _field(batch, arg) for arg in self._args()}
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            listing = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise DataError(61, f"the fields have different numbers of rows: {listing}")
        width = self._widths.predict_width()
        rows = next(iter(sizes.values()), 0)
        pieces = [
            self._chunk({n: a[at : at + width] for n, a in arrays.items()}, at // width)
            for at in range(0, rows, width)
        ]
        return unflatten(self._spec, _joined(pieces) if pieces else self._empty(width))

    def _empty(self, width: int) -> dict[str, np.ndarray]:
        entry = self._machine.bundle.program(self._widths.plan(width, width).forward)
        return {
            result.name.removeprefix("outputs."): np.empty(
                (0, *result.shape[1:]), np_dtype(result.dtype)
            )
            for result in entry.results
            if result.role == "outputs"
        }

    def _chunk(self, arrays: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        rows = len(next(iter(arrays.values())))
        plan = self._widths.plan(rows, self._widths.predict_width())
        machine = self._machine
        program = machine.program(plan.forward)
        filled = {name: fill(array, plan.width) for name, array in arrays.items()}
        given = machine.put_fields(batch_args(program.entry), filled)
        context = context_of(SPLIT, index)
        given.update(place_context(machine, program, self._scalars, context))
        results = machine.call(program, given)
        return {
            entry.name.removeprefix("outputs."): pjrt.read(array)[:rows]
            for entry, array in zip(program.entry.results, results, strict=True)
            if entry.role == "outputs"
        }


def _addressed(source: Any) -> Iterator[Any]:
    """The batches of epoch 0 of a source that gives them by index alone."""
    ask = indexed(source, begin(source, 0, 0))
    return (ask(index) for index in range(len(source)))


def _joined(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _row(arg: ArgEntry) -> str:
    return f"{arg.dtype}[{','.join(['rows', *map(str, arg.shape[1:])])}]"


def _field(batch: Mapping[str, Any], arg: ArgEntry) -> np.ndarray:
    name = field_of(arg)
    if name not in batch:
        raise DataError(
            62,
            f"the batch has no field {name!r}{near(name, list(batch))}",
            where="predict",
            help=f"give {name}: {_row(arg)}; the batch has {', '.join(batch) or 'no fields'}",
        )
    array = as_numeric(batch[name])
    found = describe(batch[name])
    fix = f"the batch axis comes first: x[None] makes a batch of one row of {name}"
    if array is not None and array.shape == arg.shape[1:]:
        found += ", which has no batch axis"
    elif array is not None and array.ndim and array.shape[1:] == arg.shape[1:]:
        array = narrow(array, field=name, where="predict")
        if ir_dtype(array.dtype) == arg.dtype:
            return array
        fix = f"convert it: {name}.astype({np_dtype(arg.dtype).name!r})"
    raise DataError(
        63,
        f"field {name!r} is {found}, expected {_row(arg)}",
        where="predict",
        help=fix,
    )
