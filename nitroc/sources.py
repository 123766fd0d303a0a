"""Where an experiment's class comes from, and the Python a training bundle carries of it.

A class is read from `exp.py[:Class]`, or from the verified bytes of a bundle's `host/`, never from
files that could have changed since they were checked.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from nitro_runtime.errors import NitroError
from nitroc.errors import BuildError
from nitroc.frontend.experiment import Experiment

_OURS = ("nitroc", "nitro_runtime", "nitro_dialect")


@dataclass(frozen=True)
class Origin:
    """An experiment's class, its project root and its file in it; None without a source file."""

    cls: type[Experiment]
    root: Path | None
    file: str | None


def load(spec: str) -> Origin:
    """The class of `exp.py` or `exp.py:Class`.

    BuildError 80: no such file, or one that can't be a module; 81: none or several experiments and
    no `:Class`; 82: the file raised when imported.
    """
    path_text, _, name = spec.partition(":")
    path = Path(path_text)
    if not path.is_file() or path.suffix != ".py":
        raise BuildError(
            80,
            f"{path_text} is not a Python file",
            help="name an experiment's file: exp.py[:Class]",
        )
    if "." in path.stem:
        raise BuildError(
            80,
            f"{path.name} is no name of a module: it has a dot before .py",
            help=f"rename it: {path.stem.replace('.', '_')}.py",
        )
    if _is_taken(path.stem):
        raise BuildError(
            80,
            f"{path.name} has the name of an installed module, which it would hide",
            help=f"rename it: my_{path.name}",
        )
    root = path.resolve().parent
    _forget(path.stem, root)
    sys.path[:] = [str(root), *(place for place in sys.path if place != str(root))]
    importlib.invalidate_caches()
    module = _import(path.stem, path_text)
    return Origin(_choose(_experiments(module), name, path_text), root, path.name)


def _is_taken(stem: str) -> bool:
    file = str(getattr(sys.modules.get(stem), "__file__", None))
    return stem in sys.stdlib_module_names or stem in _OURS or "site-packages" in file


def origin_of(cls: type[Experiment]) -> Origin:
    """Where `cls` was declared; without a readable file (REPL, `exec`) there is no root."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or not Path(file).is_file():
        return Origin(cls, None, None)
    path = Path(file).resolve()
    return Origin(cls, path.parent, path.name)


def host_files(origin: Origin) -> dict[str, bytes]:
    """`host/<name>` of the experiment's file and of every imported module under its root."""
    if origin.root is None or origin.file is None:
        raise BuildError(
            83,
            f"{origin.cls.__name__} has no source file, so no bundle on disk can carry it",
            help="move the class to a file, or train it in memory with Nitro(exp).train()",
        )
    found = {origin.file}
    for name, module in list(sys.modules.items()):
        relative = _under(origin.root, module)
        if relative is not None and name.partition(".")[0] not in _OURS:
            found.add(relative)
    return {f"host/{name}": _source(origin.root / name) for name in sorted(found)}


def _source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BuildError(
            83,
            f"a module of the experiment can't be read any more: {error.strerror}",
            where=str(path),
            help="put the file back, or start a process that does not import it",
        ) from error


def requirements(files: Mapping[str, bytes]) -> dict[str, str]:
    """Versions of the distributions that the carried modules import by name."""
    owners = importlib.metadata.packages_distributions()
    found: set[str] = set()
    for name in files:
        stem = _module_name(name)
        module = sys.modules.get(stem)
        for value in vars(module).values() if module is not None else ():
            top = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", "")
            found.update(owners.get(str(top).partition(".")[0], []))
    return {name: importlib.metadata.version(name) for name in sorted(found)}


def load_carried(files: Mapping[str, bytes], file: str, name: str, where: str) -> Origin:
    """The class `name` of a bundle's verified `host/` files, imported from these bytes.

    `where` is shown as the folder of the modules; BuildError 82 when the file raises, 81 when the
    class is not in it.
    """
    carried = {_module_name(key): (key, data) for key, data in files.items()}
    for module in carried:
        sys.modules.pop(module, None)
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Carried)]
    sys.meta_path.insert(0, _Carried(carried, where))
    module = _import(Path(file).stem, file)
    return Origin(_choose(_experiments(module), name, file), Path(where) / "host", file)


def _module_name(key: str) -> str:
    parts = Path(key.removeprefix("host/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Carried(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads modules from bytes that were verified, whatever is on disk by now."""

    def __init__(self, modules: Mapping[str, tuple[str, bytes]], where: str) -> None:
        self.modules = modules
        self.where = where

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Finds only those of its modules from now on; what is loaded stays loaded."""
        self.modules = {name: held for name, held in self.modules.items() if wanted(name)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.modules:
            return None
        spec = importlib.util.spec_from_loader(
            fullname, self, origin=self.get_filename(fullname), is_package=self.is_package(fullname)
        )
        if spec is not None:
            spec.has_location = True
        return spec

    def get_filename(self, fullname: str) -> str:
        return str(Path(self.where) / self.modules[fullname][0])

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self.modules[fullname][1])

    def is_package(self, fullname: str) -> bool:
        return Path(self.modules[fullname][0]).stem == "__init__"

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        code = compile(self.get_source(name), self.get_filename(name), "exec", dont_inherit=True)
        exec(code, module.__dict__)


def _import(stem: str, shown: str) -> ModuleType:
    try:
        return importlib.import_module(stem)
    except NitroError:
        raise
    # Whatever the user's module raises at import; leaving the process is no answer either.
    except (Exception, SystemExit) as error:
        raise BuildError(
            82,
            f"importing {shown} raised {type(error).__name__}: {error}",
            where=_raised_at(error, stem),
            help="run the file with python to see the whole traceback",
        ) from error


def _raised_at(error: BaseException, stem: str) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    trace = error.__traceback__
    line = None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == stem:
            line = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _experiments(module: ModuleType) -> dict[str, type[Experiment]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Experiment)
        and value.__module__ == module.__name__
    }


def _choose(found: Mapping[str, type[Experiment]], name: str, shown: str) -> type[Experiment]:
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    close = get_close_matches(name, found, n=1)
    if not found:
        raise BuildError(
            81,
            f"{shown} declares no experiment",
            help="derive a class from nitroc.Experiment in it: class Digits(nt.Experiment)",
        )
    what = f"no experiment {name!r}" if name else f"{len(found)} experiments"
    raise BuildError(
        81,
        f"{shown} has {what}; it declares {', '.join(found)}",
        help=f"did you mean {shown}:{close[0]}?" if close else f"name one: {shown}:Class",
    )


def _forget(stem: str, root: Path) -> None:
    """Modules of another project that would shadow this one's: same name, another folder or bundle.

    A bundle opened before keeps what it imported, and finds no more modules of these names.
    """
    local = {path.stem for path in root.glob("*.py")} | {
        path.parent.name for path in root.glob("*/__init__.py")
    }
    for finder in sys.meta_path:
        if isinstance(finder, _Carried):
            finder.keep(lambda name: name.partition(".")[0] not in local)
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if _is_taken(top):
            continue
        file = getattr(module, "__file__", None)
        foreign = file is not None and _under(root, module) is None
        if top == stem or (top in local and foreign):
            sys.modules.pop(name)


def _under(root: Path, module: ModuleType | None) -> str | None:
    file = getattr(module, "__file__", None)
    carried = isinstance(getattr(module, "__loader__", None), _Carried)
    if carried or not file or not str(file).endswith(".py"):
        return None
    try:
        relative = Path(file).resolve().relative_to(root)
    except (ValueError, OSError):
        return None
    return None if "site-packages" in relative.parts else relative.as_posix()
