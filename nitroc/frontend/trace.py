"""Hooks to imported functions: assembled, traced with jax, lowered, handed to the importer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from nitro_dialect.ir import Mark
from nitro_runtime.places import Found, remembering
from nitroc.errors import ContractError, HookError
from nitroc.frontend.bodies import Bodies
from nitroc.frontend.hookcalls import kept_value_error
from nitroc.frontend.importer import ImportedFunction, TracedFunction, import_together
from nitroc.frontend.jax_internals import (
    drop_dead,
    every_frame_in_locations,
    jaxpr_as_fun,
    lowering_with,
)
from nitroc.frontend.jaxprs import Wrap, foreign_use, read_inputs, wraps
from nitroc.frontend.mark_jaxprs import (
    all_marks,
    refuse_lost,
    refuse_uncounted,
    unmarked,
    without_marks,
)
from nitroc.frontend.mark_lowering import lowering_rule
from nitroc.frontend.mark_primitive import mark_p
from nitroc.frontend.mark_table import MarkTable, free_key
from nitroc.frontend.mark_tracing import Recording, eliminating, tracing
from nitroc.frontend.signatures import Body, Recipe, Signatures
from nitroc.frontend.source import class_root

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup


Said = TypeVar("Said", Wrap, str)


@dataclass(frozen=True)
class _Traced:
    """A function before it is lowered: its recipe, filled in, and its jaxpr as jax traced it."""

    recipe: Recipe
    closed: Any


class Tracer:
    """Traces the hooks of one experiment into functions, for one platform.

    `platform`: `cpu cuda rocm tpu`; `version`: the StableHLO version written, by default that of
    about twelve weeks back. `marks`: those of all functions so far, by key, in the order in which
    they were met. Making one forgets what jax cached, so that a jitted function or a scan body that
    reads a changed global is traced anew. Errors: those of `hookcalls`, `results`, `marks` and
    `importer`.
    """

    def __init__(self, setup: Setup, platform: str = "cpu", version: str | None = None) -> None:
        self.setup = setup
        self.groups = setup.groups
        self.platform = platform
        self.version = version
        self.root = class_root(type(setup.experiment))
        self._signatures = Signatures(setup, setup.groups)
        self._bodies = Bodies(setup, setup.groups, self.root)
        self._forwards: dict[int, ImportedFunction] = {}
        self._sampled: tuple[ImportedFunction, ImportedFunction] | None = None
        self._said: set[Wrap | str] = set()
        self._read: set[str] = set(setup.optimizer.device.values())
        self._table = MarkTable()
        self._muted = dict.fromkeys(map(_mark, setup.dropped))
        jax.clear_caches()

    @property
    def marks(self) -> dict[str, Mark]:
        return self._table.marks

    @property
    def dropped(self) -> dict[str, Mark]:
        """Diagnostics that no program holds, by keys that no mark has: their hooks never train."""
        found: dict[str, Mark] = {}
        for mark in self._muted:
            if mark not in self._table:
                key = free_key(mark, self.marks | found)
                found[key] = replace(mark, key=key)
        return found

    def objective(self) -> tuple[ImportedFunction, ImportedFunction]:
        """`@objective` and `@objective.grad`, at the train split's width, with equal parameters.

        Results: `loss` and `weight`, per train metric `metric.<name>.sum` and `.count`, per mark
        `mark.<key>:<channel>`, [`grad`,] `state`. The gradient is that of the loss sum, with
        respect to params. Both are without diagnostics. E-CONTRACT-025 for a mark that the two
        don't run alike.
        """
        self._require("forward", "loss")
        whole = self._trace_objective("objective", diagnostics=True)
        if not any(mark.kind in ("diagnostic", "tap") for mark in all_marks(whole.closed)):
            return self._import_objective(whole, diagnostics=True)
        whole.recipe.name = "objective.sampled"
        self._sampled = self._import_objective(whole, diagnostics=True)
        plain = self._trace_objective("objective", diagnostics=False)
        return self._import_objective(plain, diagnostics=False)

    def sampled(self) -> tuple[ImportedFunction, ImportedFunction] | None:
        """`@objective.sampled` and its gradient, with diagnostics; None when training has none.

        `objective` traces them.
        """
        return self._sampled

    def _trace_objective(self, name: str, *, diagnostics: bool) -> _Traced:
        recipe = self._signatures.objective(name)
        return self._trace(recipe, self._bodies.objective(recipe), diagnostics)

    def _import_objective(
        self, plain: _Traced, *, diagnostics: bool
    ) -> tuple[ImportedFunction, ImportedFunction]:
        name = plain.recipe.name
        recipe = self._signatures.objective(f"{name}.grad")
        recipe.of, recipe.wrt = name, "params"
        gradient = self._trace(recipe, self._bodies.gradient(recipe), diagnostics)
        first, second = self._together([self._lower(plain), self._lower(gradient)])
        self._check_executions(first, second)
        return first, second

    def _check_executions(self, plain: ImportedFunction, gradient: ImportedFunction) -> None:
        taps = plain.executions.taps | gradient.executions.taps
        one, other = plain.executions.count, gradient.executions.count
        for key, depth in {**one, **other}:
            here, there = one[key, depth], other[key, depth]
            if key not in taps and here != there:
                raise _other_executions(self.marks[key], here, there, depth)

    def forward(self, width: int) -> ImportedFunction:
        """`@forward.b<width>`; fields that no output needs are no parameters of it."""
        if width not in self._forwards:
            self._require("forward")
            recipe = self._signatures.forward(width)
            body = self._bodies.forward(recipe, width)
            self._forwards[width] = self._imported(recipe, body, drop_fields=True)
        return self._forwards[width]

    def reduce(
        self, width: int, rows: int, fields: Collection[str] | None = None
    ) -> ImportedFunction | None:
        """`@reduce.b<width>.r<rows>`: loss and device metrics over the first `rows` rows.

        `fields` are those the batches have (None: all of train's); without those of `loss` it is
        left out. None when nothing is left. Results: `loss.sum` and `loss.weight` (a scalar loss
        counts once per row), then `metric.<name>.{sum,count,max,min,concat}`, then marks, but not
        those of `prepare`: `forward` has them.
        """
        hooks = self._reducing(fields)
        if not hooks:
            return None
        made = self.forward(width)
        assert made.outputs is not None
        recipe = self._signatures.reduce(width, rows, made.outputs, hooks)
        body = self._bodies.reduce(recipe, width, rows, made, hooks)
        return self._imported(recipe, body, drop_fields=True, drop_marks="prepare")

    def init(self) -> ImportedFunction:
        """`@init`: a traced `build_model`, from the seed to `param` and `state`."""
        return self._imported(self._signatures.init(), self._bodies.init())

    def unread(self) -> list[str]:
        """A note for each Device leaf that no function traced so far reads, nor the optimizer."""
        return [
            f"Device {name} is read by no traced hook: no program depends on it"
            for name in self.setup.device
            if name not in self._read
        ]

    def _require(self, *hooks: str) -> None:
        for hook in hooks:
            if hook not in self.setup.routing:
                name = type(self.setup.experiment).__name__
                raise HookError(74, f"{name} has no `{hook}` hook", help=f"define `{hook}`")

    def _reducing(self, fields: Collection[str] | None) -> tuple[str, ...]:
        routing, residency = self.setup.routing, self.setup.residency
        loaded = self.setup.schema["train"].fields if fields is None else fields
        known = {*loaded, *self.setup.made}
        hooks: list[str] = []
        if "loss" in routing and known.issuperset(routing["loss"].fields):
            hooks.append("loss")
        if "metrics" in routing and residency["metrics"] == "device":
            hooks.append("metrics")
        return tuple(hooks)

    def _imported(
        self, recipe: Recipe, body: Body, *, drop_fields: bool = False, drop_marks: str = ""
    ) -> ImportedFunction:
        traced = self._trace(recipe, body, False)
        if drop_marks:
            traced = replace(traced, closed=without_marks(traced.closed, drop_marks))
        (imported,) = self._together([self._lower(traced, drop_fields=drop_fields)])
        return imported

    def _together(self, functions: Sequence[TracedFunction]) -> list[ImportedFunction]:
        return import_together(functions, self.root, self.version)

    def _trace(self, recipe: Recipe, body: Body, diagnostics: bool) -> _Traced:
        now = Recording(diagnostics)
        with tracing(now), remembering() as refused:
            closed = jax.jit(body, keep_unused=True).trace(*recipe.avals).jaxpr
        self._muted |= now.dropped | {_mark(found): None for found in refused}
        kept, line = foreign_use(closed, len(recipe.field_of_argument()), self.root)
        if kept:
            raise kept_value_error(line)
        refuse_uncounted(closed)
        return _Traced(recipe, closed)

    def _lower(self, traced: _Traced, *, drop_fields: bool = False) -> TracedFunction:
        recipe, closed = traced.recipe, traced.closed
        fields = recipe.field_of_argument()
        needed = [not (drop_fields and f) for f in fields]
        with eliminating():
            smaller, used = drop_dead(closed, needed)
        refuse_lost(closed, smaller)
        kept = compress(recipe.device_of_argument(self.setup.device), used)
        self._read.update(read_inputs(smaller, list(kept)))
        live = {name for name, read in zip(fields, used, strict=True) if name and read}
        own = len(recipe.params) - len(recipe.fields)
        there = [i < own or names[0] in live for i, names in enumerate(recipe.arguments)]
        params = list(compress(recipe.params, there))
        arguments = list(compress(recipe.arguments, there))
        marked = bool(all_marks(smaller))
        if marked:
            _, read = drop_dead(unmarked(closed), needed)
            recipe.notes += _kept_for_marks(recipe.name, fields, used, read)
        return TracedFunction(
            recipe.name,
            self._lowered(recipe.name, smaller),
            tuple(params),
            tuple(arguments),
            tuple(recipe.results),
            recipe.constants_at,
            recipe.of,
            recipe.wrt,
            (*self._fresh(recipe.notes), *self._wrap_notes(closed, fields)),
            recipe.outputs,
            recipe.tree_spec,
            self.marks if marked else {},
            recipe.marks_at,
        )

    def _lowered(self, name: str, closed: Any) -> Any:
        def function(*arguments: Any) -> Any:
            return jaxpr_as_fun(closed)(*arguments)

        function.__name__ = name
        avals = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
            for aval in closed.in_avals
        ]
        with every_frame_in_locations():
            traced = jax.jit(function, keep_unused=True).trace(*avals)
            lowered = traced.lower(
                lowering_platforms=(self.platform,),
                _private_parameters=lowering_with(mark_p, lowering_rule(self._table.key)),
            )
        return lowered.compiler_ir("stablehlo")

    def _wrap_notes(self, closed: Any, fields: Sequence[str | None]) -> list[str]:
        return [wrap.note() for wrap in self._fresh(wraps(closed, fields, self.root))]

    def _fresh(self, notes: Iterable[Said]) -> list[Said]:
        """Those that no function before this one gave."""
        fresh = [note for note in dict.fromkeys(notes) if note not in self._said]
        self._said.update(fresh)
        return fresh


def _kept_for_marks(
    function: str, fields: Sequence[str | None], used: Sequence[bool], read: Sequence[bool]
) -> list[str]:
    """A note for each field that is `used`, and would not be `read` without the marks."""
    role = function.partition(".")[0]
    needs = ": predictions need it too" if role == "forward" else ""
    rows = zip(fields, used, read, strict=True)
    names = [name for name, here, without in rows if name and here and not without]
    return [f"{role} takes the field {name} only because a mark reads it{needs}" for name in names]


def _mark(found: Found) -> Mark:
    return Mark(
        "",
        found.kind,
        found.name,
        found.meta,
        found.reduce,
        found.below,
        found.above,
        found.source,
    )


def _other_executions(mark: Mark, here: int, there: int, depth: int) -> ContractError:
    loops = f" inside {depth} loop{'s' if depth > 1 else ''}" if depth else ""
    return ContractError(
        25,
        f"{mark.kind} {mark.name} is in the objective {_times(here)}{loops}, and in its gradient "
        f"{_times(there)}",
        where=mark.source.rpartition(":")[0],
    )


def _times(count: int) -> str:
    return {0: "nowhere", 1: "once", 2: "twice"}.get(count, f"{count} times")
