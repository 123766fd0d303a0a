"""What the site takes from the code when it is built: the ops' reference, the error codes' pages.

A page asks for a part with a line `<!-- ops -->`, `<!-- passes -->` or `<!-- codes -->`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from itertools import groupby
from typing import Any

from nitro_dialect.op import (
    OPS,
    Op,
    attr,
    entries,
    operand,
    operands,
    region,
    result,
    results,
    variadic,
)
from nitro_dialect.op import symbol as symbol_
from nitroc import error_pages
from nitroc.passes.pipeline import PASSES

LABEL = re.compile(r"\((C\d+)\) (.*)", re.S)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The hook of mkdocs: a page's text with its generated parts in place."""
    for name, part in PARTS.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", part())
    return markdown


def ops() -> str:
    """Every op: its text form, meaning and numbered constraints, family by family."""
    lines: list[str] = []
    for module, members in groupby(OPS.values(), key=lambda cls: cls.__module__):
        lines += [f"### {_first_line(sys.modules[module])}", ""]
        for _, alike in groupby(members, key=inspect.getdoc):
            lines += _op(list(alike))
    return "\n".join(lines)


def _op(alike: list[type[Op]]) -> list[str]:
    """The section of ops that share one docstring."""
    names = ", ".join(f"`{cls.mnemonic}`" for cls in alike)
    forms = "\n".join(dict.fromkeys(form(cls) for cls in alike))
    text, labels = _split(inspect.getdoc(alike[0]) or "")
    anchors = [f"{alike[0].mnemonic.replace('.', '_')}_{label.lower()}" for label, _ in labels]
    return [
        f"#### {names} {{ #{alike[0].mnemonic.replace('.', '_')} }}\n",
        f"*{'Named: gone after `expand`' if alike[0].level == 'named' else 'Core'}.* {text}\n",
        f"```text\n{forms}\n```\n",
        *(
            f"* **({label})** {said}\n{{ #{anchor} }}"
            for anchor, (label, said) in zip(anchors, labels, strict=True)
        ),
        "",
    ]


def _split(doc: str) -> tuple[str, list[tuple[str, str]]]:
    """A docstring's prose, and its constraints by label."""
    prose, *rest = re.split(r"^(?=\(C\d+\))", doc, flags=re.M)
    found = [LABEL.fullmatch(" ".join(part.split())) for part in rest]
    return prose.strip(), [(match[1], match[2]) for match in found if match is not None]


def form(cls: type[Op]) -> str:
    """The shape of an op's text, as `%r = clip.by_norm %x, %norm {max = float}`."""
    made = [f"%{d.name}" for d in cls.schema(result)]
    made += [f"%{d.name}..." for d in cls.schema(results)]
    taken = [f"%{d.name}" for d in cls.schema(operand)]
    taken += [f"%{d.name}..." for d in cls.schema(variadic)]
    attributes = [f"{d.name} = {d.kind.__name__}" for d in cls.schema(attr)]
    attributes += ["name = %value, ..." for _ in cls.schema(entries)]
    words = [
        f"{', '.join(made)} =" if made else "",
        cls.mnemonic,
        *(f"@{d.name}" for d in cls.schema(symbol_)),
        ", ".join(taken),
        f"{{{', '.join(attributes)}}}" if attributes else "",
        *(f"{d.name}(%...)" for d in cls.schema(operands)),
        "(...) { ... }" if cls.schema(region) else "",
        ": types" if made else "",
    ]
    return " ".join(filter(None, words))


def passes() -> str:
    """Every pass: what it does, and its options with their defaults."""
    lines: list[str] = []
    for name, cls in sorted(PASSES.items()):
        lines += [f"### `{name}` {{ #{name} }}\n", _first_line(sys.modules[cls.__module__]), ""]
        lines += [f"{inspect.getdoc(cls)}", ""]
        lines += [f"* `{field.name}`: `{_default(field)}`" for field in dataclasses.fields(cls)]
        lines.append("")
    return "\n".join(lines)


def _default(field: dataclasses.Field[Any]) -> str:
    kind = str(field.type)
    return kind if field.default is dataclasses.MISSING else f"{kind} = {field.default!r}"


def codes() -> str:
    """The pages of the error codes, each code with its title, cause and fix."""
    known = error_pages.codes()
    lines = [error_pages.page("index").partition("\n")[2].strip(), ""]
    for area in error_pages.areas():
        page = error_pages.page(area)
        lines += [f"## {page.partition(chr(10))[0].removeprefix('# ')}", ""]
        for code, example in error_pages.sections(page).items():
            info = known[code]
            lines += [f"### {code}: {info.title} {{ #{code} }}", "", info.cause, "", example]
            lines += [f"**Fix.** {info.fix}", ""]
    return "\n".join(lines)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".")


PARTS = {"ops": ops, "passes": passes, "codes": codes}
