"""Handwritten digits: a Flax linen network with convolutions, batch statistics and dropout.

nitroc build examples/digits_cnn/exp.py -o bundle/
nitroc run bundle/
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen
from sklearn.datasets import load_digits

import nitroc as nt

SIDE, CLASSES = 8, 10


class Net(linen.Module):
    """Two convolutions, each halving the side and doubling the channels, then one dense layer."""

    channels: int
    dropout: float

    @linen.compact
    def __call__(self, image, train):
        x = image.reshape(-1, SIDE, SIDE, 1)
        for channels in (self.channels, 2 * self.channels):
            x = linen.Conv(channels, (3, 3), use_bias=False)(x)
            x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = linen.max_pool(linen.relu(x), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        x = linen.Dropout(self.dropout, deterministic=not train)(x)
        return linen.Dense(CLASSES)(x)


class DigitsCNN(nt.Experiment):
    """An 8x8 image to one of ten digits."""

    channels: nt.GraphConst[int] = 16
    "Of the first convolution; the second has twice as many."
    dropout: nt.GraphConst[float] = 0.3
    "Share of the features dropped before the last layer, in training."
    batch_size: int = 32
    max_epochs: int = 15
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3

    @classmethod
    def presets(cls):
        return {"small": {"channels": 4, "max_epochs": 3}}

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
        return nt.nn.linen(Net(self.channels, self.dropout), key, jnp.zeros((1, SIDE * SIDE)))

    def forward(self, model, params, state, *, image, train, key):
        return model.apply(params, state, image, train=train, key=key)

    def loss(self, outputs, *, label):
        picked = jnp.take_along_axis(jax.nn.log_softmax(outputs), label[:, None], axis=-1)
        return -picked.mean()

    def metrics(self, outputs, *, label):
        return {"accuracy": (np.sum(outputs.argmax(-1) == label), len(label))}
