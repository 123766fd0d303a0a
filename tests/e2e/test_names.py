"""A batch field may be called whatever a hook's parameter may: ours give way."""

import jax.numpy as jnp
import numpy as np

import nitroc as nt

OURS = ["t", "step", "seed", "index", "attempt", "halted", "mu", "p", "s", "g", "loss", "weight"]
FIELDS = [*OURS, "split", "micro", "outputs", "learning_rate", "ok", "eps", "grad", "report"]


class Clashes(nt.Experiment):
    """Fields named like our own values; Device fields named like a rule's."""

    threshold: nt.Device[float] = 0.25
    b1: nt.Device[float] = 0.5
    learning_rate: float = 1e-2

    def build_data(self):
        draw = np.random.default_rng(0)
        names = [*FIELDS, "state", "params"]
        fields = {name: draw.normal(size=8).astype(np.float32) for name in names}
        return {"train": nt.data.arrays(fields, 2), "val": nt.data.arrays(fields, 4)}

    def build_model(self, key):
        return None, {"w": jnp.ones(())}, {"n": jnp.zeros(())}

    def forward(self, model, params, state, **fields):
        return params["w"] * sum(fields[name] for name in FIELDS) * self.threshold, state

    def loss(self, outputs, *, t, state, params):
        return jnp.mean((outputs - t) ** 2) + 0 * (state + params).sum()


def test_fields_named_like_our_values_train_evaluate_and_predict(tmp_path):
    nitro = nt.Nitro(Clashes(), max_epochs=2, accum=2, run_dir=tmp_path, quiet=True).train()
    assert nitro.step == 4
    assert np.isfinite(nitro.validate()["val_loss"])
    ones = {name: np.ones(3, np.float32) for name in FIELDS}
    expected = float(nitro.parameters["w"]) * len(FIELDS) * 0.25
    np.testing.assert_allclose(nitro.predict(ones), expected, rtol=1e-6)


def test_a_device_field_named_like_a_rules_field_supplies_it(tmp_path):
    nitro = nt.Nitro(Clashes(), max_epochs=0, run_dir=tmp_path, quiet=True)
    assert "b1" in nitro.binding_report()
    assert nitro.device_value("b1") == 0.5
    assert nitro.device_value("threshold") == 0.25
