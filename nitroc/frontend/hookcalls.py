"""Calling hooks while a program is traced: what each is handed, what is said when one raises."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from nitro_runtime.dtypes import has_ir_dtype, ir_dtype, spell
from nitro_runtime.errors import NitroError
from nitro_runtime.places import Kind, Place, running
from nitro_runtime.trees import flatten, unflatten
from nitroc.errors import ContractError, FieldError, HookError
from nitroc.frontend.fulltext import first_line, write_traceback
from nitroc.frontend.locations import is_user_file, relative_path
from nitroc.frontend.view import compile_view, refuse_returned

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup

KeyOf = Callable[[str], jax.Array]
"""From the name of a hook to its key in this program."""

_MOST_LINES = 30


@dataclass(frozen=True)
class HookCalls:
    """The hooks of one program: `phase` names it in errors, `train` is the switch it hands over."""

    setup: Setup
    root: str | None
    phase: str
    devices: Mapping[str, Any]
    """Device leaf name to its traced value."""
    train: bool
    key: KeyOf

    def has(self, hook: str) -> bool:
        return hook in self.setup.routing

    def where(self, hook: str) -> str:
        return self.setup.routing[hook].where

    def call(self, hook: str, *arguments: Any, fields: Mapping[str, Any]) -> Any:
        """Calls a routed hook with the fields it named. Errors: those of `explained`."""
        given = {name: self._field(hook, name, fields) for name in self.setup.routing[hook].fields}
        return self.invoke(hook, *arguments, **given, **self._switches(hook))

    def invoke(self, hook: str, *arguments: Any, **keywords: Any) -> Any:
        """Calls a hook of the compile view with exactly these arguments, in a scope of its name."""
        experiment = self.setup.experiment
        view = compile_view(experiment, self._device_fields(), hook=hook)
        # what `build_model` computes is no step
        kind = Kind.REFUSED if hook == "build_model" else Kind.TRACED
        try:
            with running(Place(hook, kind, self.root)), jax.named_scope(hook):
                result = getattr(view, hook)(*arguments, **keywords)
        except NitroError:
            raise
        # a hook is any code: whatever it raises is reported with the hook, the line and the shapes
        except Exception as problem:
            raise self.explained(problem, hook, arguments, keywords) from problem
        refuse_returned(result, hook, self._where_or_name(hook))
        return result

    def explained(
        self,
        problem: Exception,
        hook: str,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> NitroError:
        """The named error for what a hook raised.

        E-FIELD-002 for a Device field used as a Python value, E-CONTRACT-003 for another traced
        value used so, E-CONTRACT-004 for one kept outside its trace, else E-HOOK-060.
        """
        where = self._line(problem) or self._where_or_name(hook)
        if isinstance(problem, jax.errors.UnexpectedTracerError):
            return kept_value_error(where)
        if type(problem).__name__ == "TraceContextError":
            return _changed_outside(problem, hook, where)
        if _needs_a_number(problem):
            return self._not_a_number(problem, hook, where)
        return HookError(
            60,
            f"while tracing the {self.phase}, `{hook}` raised {type(problem).__name__}: "
            f"{first_line(problem)}",
            where=where,
            also=_also(problem, hook, arguments, keywords),
            help="fix the line that is named; the full text is in the file",
        )

    def _field(self, hook: str, name: str, fields: Mapping[str, Any]) -> Any:
        if name in fields:
            return fields[name]
        raise HookError(
            72,
            f"`{hook}` asks for the field {name!r}, which the {self.phase} doesn't have: "
            f"there are {', '.join(sorted(fields)) or 'none'}",
            where=self.where(hook),
            help="return it from prepare, or give the parameter a default",
        )

    def _switches(self, hook: str) -> dict[str, Any]:
        route = self.setup.routing[hook]
        switches: dict[str, Any] = {}
        if route.train:
            switches["train"] = self.train
        if route.key:
            switches["key"] = self.key(hook)
        return switches

    def _device_fields(self) -> dict[str, Any]:
        """Device leaves gathered into the values of their fields."""
        by_field: dict[str, dict[str, Any]] = {}
        for name, value in self.devices.items():
            by_field.setdefault(self.setup.device[name].field, {})[name] = value
        return {name: self._device_field(name, leaves) for name, leaves in by_field.items()}

    def _device_field(self, name: str, leaves: Mapping[str, Any]) -> Any:
        if name in leaves:
            return leaves[name]
        spec, _ = flatten(getattr(self.setup.experiment, name))
        prefix = f"{name}."
        return unflatten(spec, {leaf.removeprefix(prefix): v for leaf, v in leaves.items()})

    def _not_a_number(self, problem: Exception, hook: str, where: str) -> NitroError:
        names = list(self.setup.device)
        found = re.search(r"\bdevices\[(\d+)\]", str(problem))
        if found is None:
            return ContractError(
                3,
                f"`{hook}` uses a traced value as a Python value: {first_line(problem)}",
                where=where,
                help="use jnp.where, jax.lax.cond or jax.lax.fori_loop; a number that decides "
                "structure is a GraphConst field",
            )
        leaf = self.setup.device[names[int(found[1])]]
        return FieldError(
            2,
            f"the Device field `{leaf.field}` is used as a Python value (`if`, `range`, a shape, "
            f"an index or a conversion) in `{hook}`",
            where=where,
            help=f"declare it `{leaf.field}: nt.GraphConst[...]` (a new value recompiles), or "
            "use jnp.where, jax.lax.cond or jax.lax.fori_loop",
        )

    def _line(self, problem: Exception) -> str | None:
        frames = traceback.extract_tb(problem.__traceback__)
        for frame in reversed(frames):
            if is_user_file(frame.filename, self.root):
                return f"{relative_path(frame.filename, self.root)}:{frame.lineno}"
        return None

    def _where_or_name(self, hook: str) -> str:
        return self.where(hook) if self.has(hook) else hook


def kept_value_error(where: str | None) -> ContractError:
    """E-CONTRACT-004, at the line that uses the value."""
    return ContractError(
        4,
        "a hook uses a traced value of another trace",
        where=where,
        help="a hook kept it, on the model, in a global or in a container: return it through "
        "outputs or state instead",
    )


def _changed_outside(problem: Exception, hook: str, where: str) -> ContractError:
    """For nnx, which refuses to leave a traced value in a module that was made before the trace."""
    return ContractError(
        4,
        f"`{hook}` would keep a traced value in a module made outside its trace: "
        f"{first_line(problem)}",
        where=where,
        help="return nt.nn.nnx(module) from build_model, and call model.apply(params, state, ...)",
    )


def described(value: Any) -> str:
    """`f32[32,10]` for an array, the type for anything else; containers leaf by leaf."""
    _, leaves = flatten(value)
    shown = [f"{path}: {_leaf(leaf)}" for path, leaf in leaves.items()]
    if list(leaves) == ["@"]:
        return _leaf(value)
    more = f", and {len(shown) - 8} more" if len(shown) > 8 else ""
    return "{" + ", ".join(shown[:8]) + more + "}"


def _leaf(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return type(leaf).__name__
    if not isinstance(dtype, np.dtype) or not has_ir_dtype(dtype):
        return f"{dtype}{list(np.shape(leaf))}"
    return spell(ir_dtype(dtype), tuple(np.shape(leaf)))


def _needs_a_number(problem: Exception) -> bool:
    concrete = (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerIntegerConversionError,
        jax.errors.TracerArrayConversionError,
        jax.errors.NonConcreteBooleanIndexError,
    )
    shape = isinstance(problem, TypeError) and "concrete values of integer type" in str(problem)
    return isinstance(problem, concrete) or shape


def _also(
    problem: Exception, hook: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> list[str]:
    lines = [line.rstrip() for line in str(problem).splitlines() if line.strip()][1:]
    shown = lines[: _MOST_LINES - 2 - len(keywords)]
    given = [f"argument {i}: {described(value)}" for i, value in enumerate(arguments)]
    named = [f"field {name}: {described(value)}" for name, value in keywords.items()]
    return [*shown, *given[-4:], *named[:12], f"full text: {write_traceback(problem, hook)}"]
