"""Optional libraries: what is said when one is missing or another object is given."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from nitroc.errors import HookError


@contextmanager
def needs(package: str, adapter: str) -> Generator[None]:
    """Around an import of `package`: E-HOOK-075 when it is not installed."""
    try:
        yield
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != package:
            raise
        raise HookError(
            75,
            f"nt.nn.{adapter} needs {package}, which is not installed",
            help=f"pip install 'nitroc[{package}]'",
        ) from problem


def not_a_module(adapter: str, expected: str, found: Any) -> HookError:
    """E-HOOK-076 for an object that is no module of the adapter's library."""
    is_class = isinstance(found, type)
    shown = f"the class {found.__name__}" if is_class else f"a {type(found).__name__}"
    return HookError(
        76,
        f"nt.nn.{adapter} was given {shown}, expected {expected}",
        help="make an instance of the class first" if is_class else f"give it {expected}",
    )
