"""Routing: which batch fields each hook is handed, decided once from its keyword-only names."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from nitro_runtime.errors import DataError
from nitroc.errors import HookError
from nitroc.frontend.hooks import HOOKS, HookSpec, has_hook, hook_location
from nitroc.frontend.names import did_you_mean, near

SWITCHES = ("train", "key")
"""Keyword names that the framework hands to a traced hook which declares them."""

NEAR_MISS = 0.75
"""How alike (difflib ratio) an absent optional field's name and an existing one are refused."""


@dataclass(frozen=True)
class Route:
    """What a hook is handed.

    `fields` of the batch, in the order of the signature (`**fields`: then all others it may see);
    `absent`: optional ones that no batch has; `train`, `key`: whether it declares them; `where`:
    `exp.py:41`; `open`: it takes `**fields`; `required`: those of `fields` without a default.
    """

    fields: tuple[str, ...]
    absent: tuple[str, ...] = ()
    train: bool = False
    key: bool = False
    where: str = ""
    open: bool = False
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Available:
    """The fields a hook can be handed: `traced` are numeric, `host` says what each loaded field is.

    `made` are those that only `prepare` has, on the device.
    """

    traced: Collection[str]
    host: Mapping[str, str]
    made: Collection[str] = field(default_factory=frozenset[str])


def route_hook(
    experiment: Any, spec: HookSpec, available: Available, *, on_host: bool, split: str = "train"
) -> Route:
    """The route of one hook against what a batch holds; `**fields` leaves out `spec.arguments`.

    E-HOOK-003 for a required field that is not there, -004 for an optional one that is nearly
    there, -008 for a host hook that asks for what `prepare` makes, -009 for one that asks for
    `train` or `key`; E-DATA-003 for a traced hook that asks for a field that is not numeric.
    """
    where = hook_location(experiment, spec.name)
    names = _keyword_only(experiment, spec.name)
    asking = _Asking(spec.name, where, available, on_host, split)
    for switch in SWITCHES if on_host else ():
        if switch in names:
            raise asking.no_switch(switch)
    wanted = {n: p for n, p in names.items() if n not in SWITCHES}
    found = tuple(name for name, p in wanted.items() if asking.finds(name, p))
    rest = _takes_rest(experiment, spec.name)
    # Python can't hand `**fields` a keyword of the name of one of the hook's own arguments.
    others = [n for n in asking.visible if n not in (*wanted, *spec.arguments)] if rest else []
    return Route(
        (*found, *others),
        tuple(name for name in wanted if name not in found),
        "train" in names,
        "key" in names,
        where,
        rest,
        tuple(n for n in found if wanted[n].default is inspect.Parameter.empty),
    )


def _keyword_only(experiment: Any, hook: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(getattr(experiment, hook)).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _takes_rest(experiment: Any, hook: str) -> bool:
    parameters = inspect.signature(getattr(experiment, hook)).parameters.values()
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


@dataclass(frozen=True)
class _Asking:
    """A hook that asks for fields of a batch."""

    hook: str
    where: str
    available: Available
    on_host: bool
    split: str

    @property
    def visible(self) -> list[str]:
        """Every field the hook could be handed."""
        return list(self.available.host if self.on_host else self.available.traced)

    def finds(self, name: str, parameter: inspect.Parameter) -> bool:
        """Whether the field is there; an absent optional one is False, everything else raises."""
        if name in self.visible:
            return True
        if name in self.available.host:
            raise self._not_numeric(name)
        if name in self.available.made:
            raise self._made_on_device(name)
        if parameter.default is inspect.Parameter.empty:
            raise self._missing(name)
        close = near(name, self.visible, NEAR_MISS)
        if close:
            raise HookError(
                4,
                f"hook {self.hook} has the optional field {name!r}, which no batch has and which "
                f"is nearly {close!r}: its default would be taken silently",
                where=self.where,
                help=f"write {close}, or give the parameter another name",
            )
        return False

    def _missing(self, name: str) -> HookError:
        return HookError(
            3,
            f"hook {self.hook} asks for the field {name!r}, which batches of split "
            f"{self.split!r} do not have",
            where=self.where,
            help=did_you_mean(name, self.visible, "fields"),
        )

    def _not_numeric(self, name: str) -> DataError:
        return DataError(
            3,
            f"hook {self.hook} is traced and asks for the field {name!r}, which is "
            f"{self.available.host[name]}, expected numbers",
            where=f"{self.where}, split {self.split!r}",
            help="encode it as numbers in the source, or ask for it in a host hook only",
        )

    def _made_on_device(self, name: str) -> HookError:
        return HookError(
            8,
            f"hook {self.hook} runs on the host and asks for {name!r}, which prepare makes on the "
            "device",
            where=self.where,
            help="return 'device' for it from metrics_residency, or compute the field in the hook",
        )

    def no_switch(self, name: str) -> HookError:
        return HookError(
            9,
            f"hook {self.hook} runs on the host and asks for {name}, which only traced hooks have",
            where=self.where,
            help=f"remove the parameter {name}",
        )


def plain_routes(experiment: Any) -> dict[str, Route]:
    """The hooks that are handed no batch fields, with their places."""
    return {
        name: Route((), where=hook_location(experiment, name))
        for name, spec in HOOKS.items()
        if not spec.fields and has_hook(experiment, name)
    }
