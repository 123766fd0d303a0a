"""A `build_model` marked traced becomes the program `init` of the bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from whole import INPUTS, Linear

import nitroc as nt
from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle


class Drawn(Linear):
    scale: nt.GraphConst[float] = 0.5

    @nt.traced
    def build_model(self, key: Any) -> Any:
        first, second = jax.random.split(key)
        params = {
            "w": jax.random.normal(first, (INPUTS,)) * self.scale,
            "b": jax.random.normal(second, ()),
        }
        return None, params, {"seen": jnp.zeros((), jnp.int32)}


def made_by_init(bundle: Bundle, seed: int) -> dict[str, np.ndarray]:
    """Leaves by `param/<path>` and `state/<path>`: the program, run through PJRT."""
    entry = bundle.manifest.programs["init"]
    device = pjrt.devices("cpu")[0]
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    program = pjrt.compile(bundle.artifact("init"), device, entry.args, entry.results)
    found = {
        (r.value, r.buffer): pjrt.read(x).reshape(-1)
        for r, x in zip(entry.results, program([pjrt.put(words, device)]), strict=True)
    }
    return {
        f"{group.role}/{leaf.path}": found[group.role, leaf.buffer][
            leaf.offset : leaf.offset + max(1, int(np.prod(leaf.shape)))
        ].reshape(leaf.shape)
        for group in bundle.manifest.groups
        for leaf in group.leaves
        if group.role in ("param", "state")
    }


def test_init_makes_what_build_model_returns_from_any_seed(tmp_path: Path) -> None:
    bundle = Bundle.open(nt.build(Drawn(), tmp_path / "bundle"))
    stored = bundle.arrays("weights/init.safetensors")
    made = made_by_init(bundle, 42)
    assert made.keys() == stored.keys() == {"param/w", "param/b", "state/seen"}
    for name, leaf in stored.items():
        np.testing.assert_allclose(made[name], leaf, rtol=1e-6)
    other = nt.Nitro(Drawn(), seed=2**40 + 7, quiet=True, run_dir=str(tmp_path / "other"))
    again = made_by_init(bundle, 2**40 + 7)
    np.testing.assert_allclose(again["param/w"], other.parameters["w"], rtol=1e-6)
    assert not np.allclose(again["param/w"], stored["param/w"])


def test_a_traced_experiment_is_built_verified_and_trained(tmp_path: Path) -> None:
    path = nt.build(Drawn(), tmp_path / "bundle", roundtrip=True, dump_ir=tmp_path / "dump")
    assert any("init" in line for line in nt.verify(path, run=True))
    handle = nt.run(path, run_dir=str(tmp_path / "run"), quiet=True)
    assert handle.step == 4
    again = nt.build_from(tmp_path / "dump" / "00-import.nir", tmp_path / "again")
    texts = [nt.ir(str(p), program="init", stablehlo=True) for p in (path, again)]
    assert texts[0] == texts[1]
