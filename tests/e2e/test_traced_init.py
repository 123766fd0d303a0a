"""A `build_model` marked traced becomes the program `init` of the bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from whole import INPUTS, Linear

import nitroc as nt
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


def test_another_seed_draws_other_initial_values(tmp_path: Path) -> None:
    path = nt.build(Drawn(), tmp_path / "bundle")
    stored = Bundle.open(path).arrays("weights/init.safetensors")
    assert stored.keys() == {"param/w", "param/b", "state/seen"}
    runs = {"quiet": True, "run_dir": str(tmp_path / "run")}
    same = nt.open_bundle(path, **runs).parameters
    np.testing.assert_array_equal(same["w"], stored["param/w"])
    seed = 2**40 + 7
    drawn = nt.open_bundle(path, seed=seed, **runs).parameters
    again = nt.Nitro(Drawn(), seed=seed, **runs).parameters
    for name in ("w", "b"):
        np.testing.assert_allclose(drawn[name], again[name], rtol=1e-6)
        assert not np.allclose(drawn[name], stored[f"param/{name}"])


def test_without_init_another_seed_keeps_the_initial_values_and_says_so(
    tmp_path: Path, capsys: Any
) -> None:
    path = nt.build(Linear(), tmp_path / "bundle")
    handle = nt.open_bundle(path, seed=7, run_dir=str(tmp_path / "run"))
    stored = Bundle.open(path).arrays("weights/init.safetensors")
    np.testing.assert_array_equal(handle.parameters["w"], stored["param/w"])
    said = "seed 7 decides data order and keys only"
    assert said in capsys.readouterr().err
    assert said in handle.binding_report()


def test_a_traced_experiment_is_built_verified_and_trained(tmp_path: Path) -> None:
    path = nt.build(Drawn(), tmp_path / "bundle", roundtrip=True, dump_ir=tmp_path / "dump")
    assert any("init" in line for line in nt.verify(path, run=True))
    handle = nt.run(path, run_dir=str(tmp_path / "run"), quiet=True)
    assert handle.step == 4
    again = nt.build_from(tmp_path / "dump" / "00-import.nir", tmp_path / "again")
    texts = [nt.ir(str(p), program="init", stablehlo=True) for p in (path, again)]
    assert texts[0] == texts[1]
    x = np.ones((8, INPUTS), np.float32)
    data = {"train": {"x": x, "y": x[:, 0]}}
    trained = nt.open_bundle(again, data=data, run_dir=str(tmp_path / "bare"), quiet=True).train()
    assert trained.stop_reason == "completed"
