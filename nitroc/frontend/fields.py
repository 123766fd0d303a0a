"""The three markers of a field, and what an annotation says about it."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

Kind = Literal["device", "host", "graphconst"]

T = TypeVar("T")


@dataclass(frozen=True)
class Marker:
    """What `Device[T]`, `Host[T]` and `GraphConst[T]` leave in an annotation.

    `arguments` counts what stood in the brackets; anything but 1 is refused when the class is made.
    """

    kind: Kind
    arguments: int = 1


class _MarkerForm:
    """`nt.Device`: subscripting it makes the `Annotated` alias that a type checker sees."""

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind: Kind = kind
        self.name = name

    def __getitem__(self, argument: Any) -> Any:
        if isinstance(argument, tuple):
            count = len(typing.cast("tuple[Any, ...]", argument))
            return Annotated[object, Marker(self.kind, count)]
        return Annotated[argument, Marker(self.kind)]

    def __repr__(self) -> str:
        return f"nitroc.{self.name}"


if TYPE_CHECKING:
    Device = Annotated[T, Marker("device")]
    GraphConst = Annotated[T, Marker("graphconst")]
    Host = Annotated[T, Marker("host")]
else:
    Device = _MarkerForm("device", "Device")
    GraphConst = _MarkerForm("graphconst", "GraphConst")
    Host = _MarkerForm("host", "Host")

MARKER_NAMES: dict[Kind, str] = {"device": "Device", "host": "Host", "graphconst": "GraphConst"}


class AnnotationProblem(Exception):
    """An annotation that is refused; the text says why."""


def read_annotation(annotation: Any) -> tuple[Kind, Any]:
    """`(kind, declared type)`; unmarked means Host. AnnotationProblem for a misused marker."""
    if isinstance(annotation, _MarkerForm):
        raise AnnotationProblem(f"{annotation.name} has no argument, expected one type")
    markers = [m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Marker)]
    declared = annotation
    if markers:
        declared = _without_markers(annotation)
    if any(True for _ in _inner_markers(declared)) or len(markers) > 1:
        raise AnnotationProblem("a marker stands inside another type or marker")
    if not markers:
        return "host", declared
    if markers[0].arguments != 1:
        name = MARKER_NAMES[markers[0].kind]
        raise AnnotationProblem(f"{name} has {markers[0].arguments} arguments, expected one type")
    return markers[0].kind, declared


def _without_markers(annotation: Any) -> Any:
    rest = tuple(m for m in annotation.__metadata__ if not isinstance(m, Marker))
    inner = annotation.__origin__
    if isinstance(inner, typing.ForwardRef):
        inner = inner.__forward_arg__
    return Annotated[(inner, *rest)] if rest else inner


def _inner_markers(declared: Any) -> Iterator[Any]:
    if isinstance(declared, _MarkerForm | Marker):
        yield declared
    yield from (m for m in getattr(declared, "__metadata__", ()) if isinstance(m, Marker))
    for argument in get_args(declared):
        yield from _inner_markers(argument)


def is_class_variable(annotation: Any) -> bool:
    return annotation is typing.ClassVar or get_origin(annotation) is typing.ClassVar


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The object a string annotation means.

    A name only type checkers know (imported under TYPE_CHECKING) leaves the text itself, which is
    a Host field's type; AnnotationProblem when such a text uses a marker.
    """
    try:
        found = eval(text, dict(names))
    # an annotation may be any expression: whatever it raises, it has no meaning at run time
    except Exception as problem:
        if _mentions_marker(text):
            raise AnnotationProblem(f"the annotation {text!r} has no value: {problem}") from None
        return text
    return evaluate(found, names) if isinstance(found, str) and found != text else found


def _mentions_marker(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    used |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    return not used.isdisjoint(MARKER_NAMES.values())


def type_text(declared: Any) -> str:
    """A declared type as a person wrote it: `int`, `tuple[int, ...]`, `jax.Array`."""
    if isinstance(declared, str):
        return declared
    if declared is None or declared is type(None):
        return "None"
    if isinstance(declared, type) and not get_args(declared):
        module = declared.__module__
        return (
            declared.__qualname__ if module == "builtins" else f"{module}.{declared.__qualname__}"
        )
    return str(declared).replace("typing.", "")


def marked_text(kind: Kind, declared: Any) -> str:
    """`GraphConst[int]`, `Device[float]`, `Host[str]`."""
    return f"{MARKER_NAMES[kind]}[{type_text(declared)}]"
