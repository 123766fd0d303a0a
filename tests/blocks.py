"""Code blocks of Markdown, run as a reader would: in order, in one folder and one namespace.

    ```python                   executed; what it prints, or the error it raises, is the next block
    ```python title="exp.py"    written to that file
    ```console                  `$ ` lines are run, the lines below each are what it prints
    ```nir                      parsed and verified
    ```text                     what the block before it printed

In what is printed `...` stands for any text, as in doctest.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from command_line import command

from nitro_dialect import DialectError, parse, verify
from nitro_runtime.errors import NitroError
from nitroc.error_pages import CODE

FENCE = re.compile(r"```(\w*)(?: title=\"([^\"]+)\")?")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, title (or ""), text, and the line (from 0) the text begins."""

    language: str
    title: str
    text: str
    line: int


def blocks(markdown: str) -> list[Block]:
    """The fenced blocks of a page. ValueError when a fence is malformed or not closed."""
    found: list[Block] = []
    opened: tuple[int, re.Match[str]] | None = None
    lines = markdown.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened is None:
            fence = FENCE.fullmatch(line)
            if fence is None:
                raise ValueError(f"line {number + 1}: a fence that can't be read: {line}")
            opened = number, fence
            continue
        start, fence = opened
        text = "".join(f"{each}\n" for each in lines[start + 1 : number])
        found.append(Block(fence[1], fence[2] or "", text, start + 1))
        opened = None
    if opened is not None:
        raise ValueError(f"line {opened[0] + 1}: a fence that is not closed")
    return found


@dataclass(frozen=True)
class Outcome:
    """A block that was run, what stands under it, and what it printed."""

    block: Block
    expected: str | None
    printed: str

    def agrees(self) -> bool:
        return self.expected is None or agrees(self.expected, self.printed)


def agrees(expected: str, printed: str) -> bool:
    check = doctest.OutputChecker().check_output
    return check(expected, printed, doctest.ELLIPSIS | doctest.REPORT_NDIFF)


def run(
    found: list[Block], folder: Path, file: str, names: Mapping[str, Any] | None = None
) -> Iterator[Outcome]:
    """Runs `found` in `folder`, which is the current one. Python without a title goes to `file`."""
    source = folder / file
    module = types.ModuleType(source.stem)
    module.__file__ = str(source)
    vars(module).update(names or {})
    for block, after in zip_longest(found, found[1:]):
        shown = after.text if after is not None and after.language == "text" else None
        if block.language == "console":
            yield from _commands(block)
        elif block.language == "nir":
            done = _captured(lambda block=block: verify(parse(block.text)), shown)
            yield Outcome(block, shown, done)
        elif block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            done = _captured(lambda block=block: _execute(block.text, source, module), shown)
            yield Outcome(block, shown, done.replace(f"{folder}/", ""))


def _execute(text: str, source: Path, module: types.ModuleType) -> None:
    """Runs `text` as the next lines of `source`, so that errors point at lines that exist."""
    before = source.read_text(encoding="utf-8") if source.exists() else ""
    source.write_text(before + text, encoding="utf-8")
    linecache.checkcache(str(source))
    sys.modules[source.stem] = module
    code = compile("\n" * before.count("\n") + text, str(source), "exec")
    exec(code, vars(module))


def _captured(call: Callable[[], object], shown: str | None) -> str:
    """What `call` prints; its last lines are the error it raises, where one is `shown`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            call()
        except (NitroError, DialectError) as error:
            if CODE.search(shown or "") is None:
                raise
            out.write(f"{error}\n")
    return out.getvalue()


def _commands(block: Block) -> Iterator[Outcome]:
    """One outcome per `$ ` line; `nitroc` runs in this process, all else in a shell."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        line, _, expected = part.partition("\n")
        words = shlex.split(line, comments=True)
        if words[0] == "nitroc":
            result = command(*words[1:])
            status, printed = result.status, result.out + result.err
        else:
            done = subprocess.run(
                line, shell=True, env=_environment(), capture_output=True, text=True, check=False
            )
            status, printed = done.returncode, done.stdout + done.stderr
        assert expected or status == 0, printed
        shown = expected or None
        yield Outcome(block, shown, printed.replace(f"{Path.cwd()}/", ""))


def _environment() -> dict[str, str]:
    """This process's, with its own `python` and `nitroc` found first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path}
