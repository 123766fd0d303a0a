"""Fields, markers and metadata of experiment classes, and the classes that are refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from declared import import_source, refused

from nitroc.frontend import fields as nt
from nitroc.frontend.experiment import (
    Experiment,
    config_metadata,
    device_fields,
    graphconst_fields,
    host_fields,
    with_values,
)
from nitroc.frontend.metadata import NO_DEFAULT

HEADER = "from nitroc.frontend import fields as nt\nfrom nitroc.frontend.experiment import *\n"


class Digits(Experiment):
    """A small classifier."""

    width: nt.GraphConst[int] = 128
    "Hidden width. Structural."
    smoothing: nt.Device[float] = 0.05
    """Label smoothing,
    schedulable."""
    max_epochs: int = 5
    name: nt.Host[str]
    shared: ClassVar[int] = 3


def test_fields_are_a_frozen_keyword_only_dataclass() -> None:
    digits = Digits(name="a", width=64)
    assert (digits.width, digits.smoothing, digits.max_epochs) == (64, 0.05, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        digits.width = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="positional"):
        Digits(64)  # pyright: ignore[reportCallIssue]


def test_metadata_in_order_of_the_fields() -> None:
    metadata = config_metadata(Digits)
    assert [f.name for f in metadata] == ["width", "smoothing", "max_epochs", "name"]
    assert [f.kind for f in metadata] == ["graphconst", "device", "host", "host"]
    assert [f.type for f in metadata] == [int, float, int, str]
    assert [f.default for f in metadata] == [128, 0.05, 5, NO_DEFAULT]
    assert [f.doc for f in metadata] == [
        "Hidden width. Structural.",
        "Label smoothing,\nschedulable.",
        None,
        None,
    ]
    lines = Path(__file__).read_text().splitlines()
    assert all(f.name in lines[f.line - 1] for f in metadata)
    assert device_fields(Digits) == ("smoothing",)
    assert host_fields(Digits) == ("max_epochs", "name")
    assert graphconst_fields(Digits) == ("width",)


def test_help_lists_fields_kinds_docs() -> None:
    assert Digits.__doc__ is not None
    assert Digits.__doc__.startswith("A small classifier.")
    assert "width: GraphConst[int] = 128\n        Hidden width. Structural." in Digits.__doc__


def test_a_subclass_appends_and_redeclares_in_place() -> None:
    class Wide(Digits):
        depth: nt.GraphConst[int] = 2
        width: int = 256

    metadata = config_metadata(Wide)
    assert [f.name for f in metadata] == ["width", "smoothing", "max_epochs", "name", "depth"]
    assert (metadata[0].kind, metadata[0].default) == ("host", 256)
    assert metadata[0].doc == "Hidden width. Structural."
    assert config_metadata(Digits)[0].kind == "graphconst"


def test_without_source_docs_are_none_and_lines_zero() -> None:
    code = f"{HEADER}class A(Experiment):\n    x: nt.Device[int] = 1\n    'doc'\n"
    code += "f = config_metadata(A)[0]; assert (f.doc, f.line, f.kind) == (None, 0, 'device'), f\n"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_repr_is_one_line_per_field() -> None:
    class Arrays(Experiment):
        table: nt.Device[Any] = dataclasses.field(default_factory=lambda: np.zeros((2, 3)))
        on_device: nt.Device[Any]
        text: str = "a\nb"

    arrays = Arrays(on_device=jnp.ones((4,), jnp.float32))
    assert repr(arrays).splitlines() == [
        "Arrays(",
        "  table = Device <float64[2,3]>",
        "  on_device = Device <float32[4]>",
        "  text = Host 'a\\nb'",
        ")",
    ]
    assert "<td>table</td><td>Device</td><td>&lt;float64[2,3]&gt;</td>" in arrays._repr_html_()


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("x: nt.Device", "E-FIELD-003", "no argument"),
        ("x: nt.Device[int, float] = 1", "E-FIELD-003", "2 arguments"),
        ("x: nt.Device[nt.Host[int]] = 1", "E-FIELD-003", "inside another"),
        ("x: list[nt.Host[int]] = ()", "E-FIELD-003", "inside another"),
        ("x: 'nt.Device[Missing]' = 1", "E-FIELD-013", "Missing"),
        ("x = 3", "E-FIELD-004", "no annotation"),
        ("optimizer = lambda self, group: group", None, ""),
        ("x: list = []", "E-FIELD-005", "mutable"),
        ("x: object = ([],)", "E-FIELD-005", "mutable"),
        ("forward: int = 3", "E-FIELD-006", "hook"),
        ("export_inputs: int = 3", "E-FIELD-006", "hook"),
        ("loss = 3", "E-FIELD-006", "hook"),
    ],
)
def test_refused_at_class_creation(tmp_path: Path, body: str, code: str | None, says: str) -> None:
    source = f"{HEADER}class A(Experiment):\n    y: int = 1\n    {body}\n"
    if code is None:
        import_source(tmp_path / "exp.py", source)
        return
    error = refused(code, lambda: import_source(tmp_path / "exp.py", source))
    assert says in error.what
    assert error.where == f"A.{body.partition(':')[0].partition(' ')[0]} (exp.py:5)"


def test_annotations_only_type_checkers_know_are_host() -> None:
    names = {"__name__": "somewhere"}
    exec(
        f"from __future__ import annotations\n{HEADER}class A(Experiment):\n    d: Unknown\n", names
    )
    assert config_metadata(names["A"])[0].kind == "host"  # pyright: ignore[reportArgumentType]


def test_a_plain_base_with_annotations_is_refused() -> None:
    class Mixin:
        rate: float = 1.0

    error = refused("E-FIELD-012", lambda: type("A", (Mixin, Experiment), {}))
    assert "rate" in error.what


def test_constructor_names_unknown_and_missing_fields() -> None:
    error = refused("E-FIELD-015", lambda: Digits(name="a", widht=3))  # pyright: ignore[reportCallIssue]
    assert error.help is not None
    assert "did you mean width?" in error.help
    assert "name" in refused("E-FIELD-016", Digits).what  # pyright: ignore[reportArgumentType]


def test_with_values_leaves_the_original() -> None:
    digits = Digits(name="a")
    assert with_values(digits, {"width": 9}).width == 9
    assert digits.width == 128
