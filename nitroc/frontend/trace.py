"""Hooks to imported functions: assembled, traced with jax, lowered, handed to the importer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from nitroc.errors import HookError
from nitroc.frontend.bodies import Bodies
from nitroc.frontend.hookcalls import kept_value_error
from nitroc.frontend.importer import ImportedFunction, TracedFunction, import_together
from nitroc.frontend.jax_internals import drop_dead, every_frame_in_locations, jaxpr_as_fun
from nitroc.frontend.jaxprs import Wrap, foreign_use, read_inputs, wraps
from nitroc.frontend.signatures import Body, Recipe, Signatures
from nitroc.frontend.source import class_root

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup


Said = TypeVar("Said", Wrap, str)


class Tracer:
    """Traces the hooks of one experiment into functions, for one platform.

    `platform`: `cpu cuda rocm tpu`; `version`: the StableHLO version written, by default that of
    about twelve weeks back. Making one forgets what jax cached, so that a jitted function or a scan
    body that reads a changed global is traced anew. Errors: those of `hookcalls`, `results` and
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
        self._said: set[Wrap | str] = set()
        self._read: set[str] = set(setup.optimizer.device.values())
        jax.clear_caches()

    def objective(self) -> tuple[ImportedFunction, ImportedFunction]:
        """`@objective` and `@objective.grad`, at the train split's width, with equal parameters.

        Results: `loss` and `weight`, per train metric `metric.<name>.sum` and `.count`, [`grad`,]
        `state`. The gradient is that of the loss sum, with respect to params.
        """
        self._require("forward", "loss")
        plain = self._signatures.objective("objective")
        gradient = self._signatures.objective("objective.grad")
        gradient.of, gradient.wrt = "objective", "params"
        first, second = self._imported(
            (plain, self._bodies.objective(plain)), (gradient, self._bodies.gradient(gradient))
        )
        return first, second

    def forward(self, width: int) -> ImportedFunction:
        """`@forward.b<width>`; fields that no output needs are no parameters of it."""
        if width not in self._forwards:
            self._require("forward")
            recipe = self._signatures.forward(width)
            body = self._bodies.forward(recipe, width)
            (self._forwards[width],) = self._imported((recipe, body), drop_fields=True)
        return self._forwards[width]

    def reduce(
        self, width: int, rows: int, fields: Collection[str] | None = None
    ) -> ImportedFunction | None:
        """`@reduce.b<width>.r<rows>`: loss and device metrics over the first `rows` rows.

        `fields` are those the batches have (None: all of train's); without those of `loss` it is
        left out. None when nothing is left. Results: `loss.sum` and `loss.weight` (a scalar loss
        counts once per row), then `metric.<name>.{sum,count,max,min,concat}`.
        """
        hooks = self._reducing(fields)
        if not hooks:
            return None
        made = self.forward(width)
        assert made.outputs is not None
        recipe = self._signatures.reduce(width, rows, made.outputs, hooks)
        body = self._bodies.reduce(recipe, width, rows, made, hooks)
        return self._imported((recipe, body), drop_fields=True)[0]

    def init(self) -> ImportedFunction:
        """`@init`: a traced `build_model`, from the seed to `param` and `state`."""
        return self._imported((self._signatures.init(), self._bodies.init()))[0]

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
        self, *pairs: tuple[Recipe, Body], drop_fields: bool = False
    ) -> list[ImportedFunction]:
        traced = [self._traced(recipe, body, drop_fields) for recipe, body in pairs]
        return import_together(traced, self.root, self.version)

    def _traced(self, recipe: Recipe, body: Body, drop_fields: bool) -> TracedFunction:
        closed = jax.jit(body, keep_unused=True).trace(*recipe.avals).jaxpr
        fields = recipe.field_of_argument()
        kept, line = foreign_use(closed, len(fields), self.root)
        if kept:
            raise kept_value_error(line)
        smaller, used = drop_dead(closed, [not (drop_fields and f) for f in fields])
        kept = compress(recipe.device_of_argument(self.setup.device), used)
        self._read.update(read_inputs(smaller, list(kept)))
        live = {name for name, read in zip(fields, used, strict=True) if name and read}
        own = len(recipe.params) - len(recipe.fields)
        there = [i < own or names[0] in live for i, names in enumerate(recipe.arguments)]
        params = list(compress(recipe.params, there))
        arguments = list(compress(recipe.arguments, there))
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
            lowered = traced.lower(lowering_platforms=(self.platform,))
        return lowered.compiler_ir("stablehlo")

    def _wrap_notes(self, closed: Any, fields: Sequence[str | None]) -> list[str]:
        return [wrap.note() for wrap in self._fresh(wraps(closed, fields, self.root))]

    def _fresh(self, notes: Iterable[Said]) -> list[Said]:
        """Those that no function before this one gave."""
        fresh = [note for note in dict.fromkeys(notes) if note not in self._said]
        self._said.update(fresh)
        return fresh
