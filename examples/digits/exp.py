"""Handwritten digits: a two-layer perceptron on scikit-learn's bundled images.

nitroc build examples/digits/exp.py -o bundle/
nitroc run bundle/ --epochs 40
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import nitroc as nt

CLASSES = 10


class Digits(nt.Experiment):
    """An 8x8 image to one of ten digits."""

    width: nt.GraphConst[int] = 128
    "Hidden width; another value is another program."
    smoothing: nt.Device[float] = 0.05
    "Label smoothing; changing or scheduling it never recompiles."
    batch_size: int = 32
    "Rows per step."
    max_epochs: int = 40
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3

    def build_data(self):
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(images))
        images = (images[order] / 16).astype(np.float32)
        labels = labels[order].astype(np.int32)
        cuts = {"train": slice(0, 1280), "val": slice(1280, 1500), "test": slice(1500, None)}
        return {
            name: nt.data.arrays(
                {"image": images[rows], "label": labels[rows]},
                self.batch_size,
                shuffle=name == "train",
            )
            for name, rows in cuts.items()
        }

    def build_model(self, key):
        first, second = jax.random.split(key)
        params = {
            "hidden": dense(first, 64, self.width),
            "logits": dense(second, self.width, CLASSES),
        }
        return None, params, {}

    def forward(self, model, params, state, *, image):
        hidden = jax.nn.relu(affine(params["hidden"], image))
        return affine(params["logits"], hidden), state

    def loss(self, outputs, *, label):
        target = jax.nn.one_hot(label, CLASSES)
        target = target * (1 - self.smoothing) + self.smoothing / CLASSES
        return -jnp.sum(target * jax.nn.log_softmax(outputs), axis=-1).mean()

    def metrics(self, outputs, *, label):
        return {"accuracy": (np.sum(outputs.argmax(-1) == label), len(label))}


def dense(key, inputs, outputs):
    """Parameters of an affine layer, He-normal."""
    kernel = jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def affine(params, x):
    return x @ params["kernel"] + params["bias"]
