"""The codes of all packages, and the example of each: one Markdown page per area, `pages/`.

A page has a section `## E-FIELD-001` per code: prose, and fenced blocks that provoke the error and
show what is printed. The tests run them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from nitro_dialect import CODES as IR_CODES
from nitro_dialect.errors import CodeInfo as IrCodeInfo
from nitro_runtime.errors import CodeInfo
from nitroc.errors import CODES

CODE = re.compile(r"E-[A-Z]+-\d{3}")
START = "`Base` is a complete experiment and `bundle/` its bundle: nitroc/pages/index.md"


def codes() -> Mapping[str, CodeInfo | IrCodeInfo]:
    """Every code of the compiler, the runtime and the dialect."""
    return {**CODES, **IR_CODES}


def area(code: str) -> str:
    """`FIELD` of `E-FIELD-001`."""
    return code.split("-")[1]


def sections(markdown: str) -> dict[str, str]:
    """The text under each `## E-AREA-NNN` of a page. ValueError for any other `## ` heading."""
    found: dict[str, str] = {}
    for part in re.split(r"^## ", markdown, flags=re.M)[1:]:
        code, _, text = part.partition("\n")
        if CODE.fullmatch(code) is None or code in found:
            raise ValueError(f"a heading that is no code, or one given twice: {code}")
        found[code] = text.strip() + "\n"
    return found


@cache
def page(name: str) -> str:
    """The Markdown of an area (`FIELD`), or of `index`."""
    return (files("nitroc") / "pages" / f"{name}.md").read_text(encoding="utf-8")


def areas() -> list[str]:
    """The areas in the order of the tables."""
    return list(dict.fromkeys(area(code) for code in codes()))


def explanation(code: str) -> str:
    """Title, cause, example and fix of `code`, which is in `codes()`, for a terminal."""
    info = codes()[code]
    text = sections(page(area(code)))[code]
    example = [f"  {line}".rstrip() for line in text.splitlines() if not line.startswith("```")]
    start = [f"  ({START})"] if re.search(r"\bBase\b|\bbundle\b", text) else []
    return "\n".join(
        [
            f"{code}: {info.title}\n",
            f"cause: {info.cause}",
            "example:",
            *example,
            *start,
            f"fix: {info.fix}",
        ]
    )
