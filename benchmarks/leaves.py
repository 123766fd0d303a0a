"""An experiment with many small parameters: a residual perceptron of 50 layers, 100 leaves."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import nitroc as nt

FEATURES, CLASSES = 64, 10


class Leaves(nt.Experiment):
    """Points of ten Gaussian clouds, told apart by `layers` affine layers."""

    layers: nt.GraphConst[int] = 50
    "Affine layers; each is a kernel and a bias."
    width: nt.GraphConst[int] = 64
    "Hidden width."
    batch_size: int = 32
    max_epochs: int = 1
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3

    def build_data(self):
        random = np.random.default_rng(0)
        label = random.integers(0, CLASSES, 1280).astype(np.int32)
        centre = random.normal(size=(CLASSES, FEATURES))
        x = (centre[label] + random.normal(size=(1280, FEATURES))).astype(np.float32)
        return {"train": nt.data.arrays({"x": x, "label": label}, self.batch_size, shuffle=True)}

    def build_model(self, key):
        widths = [FEATURES, *[self.width] * (self.layers - 1), CLASSES]
        keys = jax.random.split(key, self.layers)
        params = {
            f"layer_{i:02d}": {
                "kernel": jax.random.normal(keys[i], (n, m)) * (1 / n) ** 0.5,
                "bias": jnp.zeros(m),
            }
            for i, (n, m) in enumerate(pairwise(widths))
        }
        return None, params, {}

    def forward(self, model, params, state, *, x):
        *hidden, last = [params[name] for name in sorted(params)]
        for layer in hidden:
            x = x + 0.1 * jax.nn.relu(x @ layer["kernel"] + layer["bias"])
        return x @ last["kernel"] + last["bias"], state

    def loss(self, outputs, *, label):
        return -jnp.take_along_axis(jax.nn.log_softmax(outputs), label[:, None], axis=1).mean()
