"""An exception in one line, and its whole traceback in a file that a message can name."""

from __future__ import annotations

import hashlib
import tempfile
import traceback
from pathlib import Path


def first_line(problem: BaseException) -> str:
    """The first line of the message that says something, at most 400 characters of it."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if len(first) <= 400 else f"{first[:400]}..."


def write_traceback(problem: BaseException, stem: str) -> str:
    """Where the whole traceback went; named by its content, so a repeat adds no file."""
    text = "".join(traceback.format_exception(problem))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    try:
        path = Path(tempfile.gettempdir()) / f"nitroc-{stem}-{digest}.txt"
        path.write_text(text, encoding="utf-8")
    except OSError as error:  # the problem itself still has to be told
        return f"lost, no temporary file can be written ({error.strerror})"
    return str(path)
