"""What a program was made from, by name, so that compiling one is explained by what changed."""

from __future__ import annotations

from collections.abc import Mapping

from nitro_runtime.dtypes import spell
from nitro_runtime.manifest import Manifest, ProgramEntry


def ingredients(
    manifest: Manifest, name: str, entry: ProgramEntry, given: Mapping[str, str]
) -> dict[str, str]:
    """`program`, `experiment`, `GraphConst x`, `hook loss`, `batch img`, ... of one program;
    `given` are those the host knows."""
    found = {"program": name, "experiment": manifest.experiment.name}
    for field, row in manifest.fields.items():
        if row.kind == "GraphConst":
            found[f"GraphConst {field}"] = repr(row.value)
    for function in manifest.functions.values():
        found[f"hook {function.hook}"] = f"{function.digest} {function.source}"
    for arg in entry.args:
        if arg.role == "batch":
            found[arg.name.replace(".", " ", 1)] = spell(arg.dtype, arg.shape)
    leaves = [leaf for g in manifest.groups if g.role == "param" for leaf in g.leaves]
    exempt = sum("decay" not in leaf.flags for leaf in leaves)
    found["leaves without decay"] = f"{exempt} of {len(leaves)}"
    if entry.role == "train_step":
        found["pipeline"] = manifest.pipeline
    return {**found, **given}
