"""The base class of experiments: subclasses become frozen dataclasses with marked fields."""

from __future__ import annotations

import dataclasses
import functools
import html
import inspect
import sys
import types
from collections.abc import Mapping
from types import FrameType
from typing import Any, ClassVar, ForwardRef, TypeVar, cast, dataclass_transform

from nitroc.errors import FieldError
from nitroc.frontend.fields import (
    MARKER_NAMES,
    AnnotationProblem,
    Kind,
    evaluate,
    is_class_variable,
    read_annotation,
)
from nitroc.frontend.hooks import is_hook_name
from nitroc.frontend.metadata import NO_DEFAULT, Declared, FieldMetadata, scan_class, short_value
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.source import location

E = TypeVar("E", bound="Experiment")


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    eq_default=False,
    field_specifiers=(dataclasses.field,),
)
class Experiment:
    """What a training run is: fields (what the compiled program may see) and hooks.

    A subclass is a frozen, keyword-only dataclass. Its annotated names are fields: `GraphConst[T]`
    is baked into the programs, `Device[T]` is an input of theirs, and `Host[T]` (or no marker)
    stays invisible to them. E-FIELD-003 to -006, -012 and -013 refuse a class that can't be read.
    """

    __nitro_fields__: ClassVar[dict[str, FieldMetadata]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        _declare(cls, _class_frame())

    def __repr__(self) -> str:
        lines = [f"  {name} = {marker} {value}" for name, marker, value in _rows(self)]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in _rows(self)
        )
        title = html.escape(type(self).__name__)
        head = "<tr><th>field</th><th>marker</th><th>value</th></tr>"
        return f"<table><caption>{title}</caption>{head}{rows}</table>"


def _rows(experiment: Experiment) -> list[tuple[str, str, str]]:
    known = type(experiment).__nitro_fields__.values()
    return [(f.name, MARKER_NAMES[f.kind], short_value(getattr(experiment, f.name))) for f in known]


def _class_frame() -> FrameType:
    """The frame that runs the class statement: past every `__init_subclass__`."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name == "__init_subclass__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


class _Site:
    """Where a class is declared: turns a field's name into `file:line` for errors."""

    def __init__(self, cls: type, frame: FrameType) -> None:
        self.cls = cls
        self.file = frame.f_code.co_filename
        self.line = frame.f_lineno
        self.names: dict[str, Declared] = scan_class(self.file, self.line, cls.__name__)
        self.scope: dict[str, Any] = {**frame.f_globals, **frame.f_locals, **vars(cls)}

    def where(self, name: str) -> str:
        line = self.names[name].line if name in self.names else self.line
        return f"{self.cls.__name__}.{name} ({location(self.file, line)})"


def _declare(cls: type[Experiment], frame: FrameType) -> None:
    site = _Site(cls, frame)
    annotations = _annotations(cls, site)
    _refuse_plain_bases(cls)
    _refuse_unannotated(cls, annotations, site)
    kinds = {name: _kind(name, annotation, site) for name, annotation in annotations.items()}
    for name in kinds:
        _refuse_hook_name(name, site)
        _refuse_mutable(cls, name, site)
    dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
    cls.__nitro_fields__ = _metadata(cls, kinds, site)
    _check_arguments(cls)
    cls.__doc__ = _document(cls)


def _annotations(cls: type, site: _Site) -> dict[str, Any]:
    found = inspect.get_annotations(cls)
    for name, annotation in found.items():
        if isinstance(annotation, str):
            try:
                found[name] = evaluate(annotation, site.scope)
            except AnnotationProblem as problem:
                raise FieldError(
                    13,
                    f"the annotation of field {name} can't be read: {problem}",
                    where=site.where(name),
                    help="import what the annotation names where the class can see it",
                ) from None
    # dataclasses would look names of strings up in sys.modules, where a class's module may not be
    cls.__annotations__ = {n: ForwardRef(a) if isinstance(a, str) else a for n, a in found.items()}
    return {n: a for n, a in found.items() if not is_class_variable(a)}


def _kind(name: str, annotation: Any, site: _Site) -> tuple[Kind, Any]:
    try:
        return read_annotation(annotation)
    except AnnotationProblem as problem:
        raise FieldError(
            3,
            f"field {name} uses a marker wrongly: {problem}",
            where=site.where(name),
            help=f"write one marker around one type: {name}: nt.Device[float]",
        ) from None


def _refuse_plain_bases(cls: type) -> None:
    for base in cls.__mro__[1:]:
        if issubclass(base, Experiment) or base.__module__ in ("builtins", "typing", "abc"):
            continue
        names = [n for n in inspect.get_annotations(base) if not n.startswith("_")]
        if names:
            raise FieldError(
                12,
                f"{base.__name__} annotates {', '.join(names)} but is no Experiment: "
                f"they would not become fields of {cls.__name__}",
                where=f"{base.__module__}.{base.__qualname__}",
                help=f"derive {base.__name__} from nt.Experiment",
            )


def _refuse_unannotated(cls: type, annotations: Mapping[str, Any], site: _Site) -> None:
    for name, value in vars(cls).items():
        if name.startswith("_") or name in annotations or _is_code(value):
            continue
        if name in inspect.get_annotations(cls):
            continue
        if is_hook_name(name):
            _refuse_hook_name(name, site)
        raise FieldError(
            4,
            f"{name} = {short_value(value)} looks like a field but has no annotation",
            where=site.where(name),
            help=f"annotate it, {name}: nt.GraphConst[{type(value).__name__}] = ..., or start its "
            "name with an underscore",
        )


def _is_code(value: Any) -> bool:
    code = (type, types.ModuleType)
    return isinstance(value, code) or hasattr(type(value), "__get__")


def _refuse_hook_name(name: str, site: _Site) -> None:
    if is_hook_name(name):
        raise FieldError(
            6,
            f"field {name} has the name of a hook",
            where=site.where(name),
            help=f"rename the field, or write the hook: def {name}(self, ...)",
        )


def _refuse_mutable(cls: type, name: str, site: _Site) -> None:
    value = cls.__dict__.get(name)
    if isinstance(value, dataclasses.Field) or _is_immutable(value):
        return
    raise FieldError(
        5,
        f"the default of field {name} is mutable: {short_value(value)}",
        where=site.where(name),
        help="every instance would share it: use a tuple, or "
        f"dataclasses.field(default_factory=lambda: {short_value(value)})",
    )


def _is_immutable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _metadata(
    cls: type[Experiment], kinds: Mapping[str, tuple[Kind, Any]], site: _Site
) -> dict[str, FieldMetadata]:
    inherited: dict[str, FieldMetadata] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(base.__dict__.get("__nitro_fields__", {}))
    result: dict[str, FieldMetadata] = {}
    for field in dataclasses.fields(cast("Any", cls)):
        before = inherited.get(field.name)
        if field.name not in kinds and before is not None:
            result[field.name] = before
            continue
        kind, declared = kinds[field.name]
        seen = site.names.get(field.name, Declared(0, None))
        doc = seen.doc or (before.doc if before else None)
        default = _default(field)
        result[field.name] = FieldMetadata(field.name, declared, default, kind, doc, seen.line)
    return result


@dataclasses.dataclass(frozen=True)
class _MadeBy:
    """The default of a field with a `default_factory`."""

    factory: Any

    def __repr__(self) -> str:
        return f"{getattr(self.factory, '__name__', self.factory)}()"


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return _MadeBy(field.default_factory)
    return NO_DEFAULT


def _check_arguments(cls: type[Experiment]) -> None:
    """Puts a check of the given names before the constructor that dataclasses made."""
    made = cls.__dict__["__init__"]
    if made.__qualname__ != f"{cls.__qualname__}.__init__" or hasattr(made, "__wrapped__"):
        return
    required = [f.name for f in cls.__nitro_fields__.values() if f.default is NO_DEFAULT]

    @functools.wraps(made)
    def __init__(self: Any, *positional: Any, **values: Any) -> None:
        check_fields(cls, values)
        missing = [name for name in required if name not in values]
        if missing and not positional:
            raise FieldError(
                16,
                f"{cls.__name__} needs a value for {', '.join(missing)}",
                where=str(cls.__nitro_fields__[missing[0]]),
                help=f"give it: {cls.__name__}({missing[0]}=...)",
            )
        made(self, *positional, **values)

    cls.__init__ = __init__


def check_fields(cls: type[Experiment], names: Mapping[str, Any], said_by: str = "") -> None:
    """E-FIELD-015 for a name that is no field of `cls`, with the near miss."""
    for name in names:
        if name not in cls.__nitro_fields__:
            raise FieldError(
                15,
                f"{said_by or cls.__name__} has {name!r}, which is no field of {cls.__name__}",
                where=cls.__qualname__,
                help=did_you_mean(name, cls.__nitro_fields__, "fields"),
            )


def _document(cls: type[Experiment]) -> str:
    own = cls.__dict__.get("__doc__") or ""
    if own.startswith(f"{cls.__name__}("):
        own = ""
    lines = [own.rstrip(), "", "Fields:"] if own else ["Fields:"]
    for field in cls.__nitro_fields__.values():
        lines.append(f"    {field}")
        lines += [f"        {line}" for line in (field.doc or "").splitlines()]
    return "\n".join(lines) if cls.__nitro_fields__ else own


def config_metadata(cls: type[Experiment]) -> tuple[FieldMetadata, ...]:
    """Every field of `cls` in order: name, type, default (or `NO_DEFAULT`), kind, doc, line."""
    return tuple(cls.__nitro_fields__.values())


def _of_kind(cls: type[Experiment], kind: Kind) -> tuple[str, ...]:
    return tuple(f.name for f in config_metadata(cls) if f.kind == kind)


def device_fields(cls: type[Experiment]) -> tuple[str, ...]:
    """The names of the `Device` fields, in order."""
    return _of_kind(cls, "device")


def host_fields(cls: type[Experiment]) -> tuple[str, ...]:
    """The names of the `Host` (and unmarked) fields, in order."""
    return _of_kind(cls, "host")


def graphconst_fields(cls: type[Experiment]) -> tuple[str, ...]:
    """The names of the `GraphConst` fields, in order."""
    return _of_kind(cls, "graphconst")


def with_values(experiment: E, values: Mapping[str, Any]) -> E:
    """A copy of `experiment` with other field values; cached properties are computed again."""
    cls = type(experiment)
    copy = object.__new__(cls)
    for name, value in {**vars(experiment), **values}.items():
        if not isinstance(getattr(cls, name, None), functools.cached_property):
            object.__setattr__(copy, name, value)
    return copy
