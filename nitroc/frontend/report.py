"""The binding report: every configured value, where it bound, and what decided it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """One bound value."""

    section: str
    name: str
    value: str
    source: str = ""


@dataclass
class BindingReport:
    """Lines by section, in the order they were added. Making it never fails a run."""

    lines: list[Line] = field(default_factory=list[Line])

    def add(self, section: str, name: str, value: object, source: str = "") -> None:
        """Adds one line; `source` is keyword, recorded, attribute, derived, default or a note."""
        self.lines.append(Line(section, name, _shown(value), source))

    def text(self) -> str:
        """All sections, one line per value: `  name  value  (source)`."""
        sections = dict.fromkeys(line.section for line in self.lines)
        return "\n".join(part for name in sections for part in self._section(name))

    def _section(self, name: str) -> list[str]:
        lines = [line for line in self.lines if line.section == name]
        names = max(len(line.name) for line in lines)
        values = max((len(line.value) for line in lines if line.source), default=0)
        return [f"{name}:", *(_row(line, names, min(values, 40)) for line in lines)]


def _row(line: Line, names: int, values: int) -> str:
    value = line.value.ljust(values) if line.source else line.value
    source = f"  ({line.source})" if line.source else ""
    return f"  {line.name.ljust(names)}  {value}{source}"


def _shown(value: object) -> str:
    try:
        return value if isinstance(value, str) else repr(value)
    # a user's object may raise anything from its repr, and a report may not fail a run
    except Exception as problem:
        return f"<{type(value).__name__} whose repr raised {type(problem).__name__}>"
