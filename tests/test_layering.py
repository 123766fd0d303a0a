"""Import sites of foreign bindings, beside what import-linter holds."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("nitroc", "dialect/nitro_dialect", "runtime/nitro_runtime")

MLIR = {
    "nitroc/emit/mlir.py",
    "nitroc/frontend/importer.py",
    "runtime/nitro_runtime/artifact.py",
}


def imports() -> Iterator[tuple[str, str]]:
    """(file, module) of every import that runs, type checking aside."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                file = path.relative_to(ROOT).as_posix()
                if isinstance(node, ast.Import):
                    yield from ((file, alias.name) for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield file, node.module
                    yield from ((file, f"{node.module}.{alias.name}") for alias in node.names)


def sites(*prefixes: str) -> set[str]:
    return {f for f, name in imports() for p in prefixes if name == p or name.startswith(f"{p}.")}


def test_mlir_is_imported_at_its_seams_only():
    assert sites("jaxlib.mlir") <= MLIR


def test_private_jax_names_are_at_their_seams_only():
    private = sites("jax._src", "jaxlib._jax", "jaxlib.xla_client", "jax.extend")
    assert private <= {"nitroc/frontend/jax_internals.py", "runtime/nitro_runtime/pjrt.py"}


def test_jax_is_imported_by_the_front_end_and_the_runtime_seam_only():
    """And by the adapters of models, which user code calls where the front end traces it."""
    compiler = {f for f in sites("jax") if f.startswith("nitroc/")}
    assert all(f.startswith(("nitroc/frontend/", "nitroc/nn/")) for f in compiler), compiler
    runtime = {f for f in sites("jax") if f.startswith("runtime/")}
    assert runtime <= {"runtime/nitro_runtime/pjrt.py"}


def test_libraries_of_models_are_imported_by_their_adapters_only():
    expected = {"nitroc/nn/linen_model.py", "nitroc/nn/nnx_model.py", "nitroc/nn/equinox_model.py"}
    assert sites("flax", "equinox") == expected


def test_no_pickle_anywhere():
    assert not sites("pickle", "cloudpickle", "marshal", "shelve", "dill")
