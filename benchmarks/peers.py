"""Keras 3 on JAX and PyTorch Lightning, where they are installed, on the jobs they share with us.

`PEERS[name](job, source, steps)` is a loop for `Standing`: it calls `turn()` before each epoch.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

SHARED = ("digits", "cnn")
"""Jobs that the peers have too."""

Turn = Callable[[], None]
Loop = Callable[[Turn], None]
ENDLESS = 10**6


def installed(peer: str) -> bool:
    """Whether the packages of `peer` can be imported."""
    return all(importlib.util.find_spec(name) for name in NEEDS[peer])


def rows(source: Any, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of the first `steps` batches."""
    plan = source.begin_epoch(1, 42)
    batches = [source.batch_at(i, plan) for i in range(steps)]
    image, label = (
        np.concatenate([batch[name] for batch in batches]) for name in ("image", "label")
    )
    return image.reshape(len(image), 64), label


def keras(job: str, source: Any, steps: int) -> Loop:
    """`Model.fit` with Adam and decoupled decay, jit-compiled by JAX."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    layers = keras.layers
    image, label = rows(source, steps)
    if job == "digits":
        stack = [layers.Dense(128, activation="relu"), layers.Dense(10)]
    else:
        stack = [layers.Reshape((8, 8, 1))]
        for channels in (16, 32):
            stack += [
                layers.Conv2D(channels, 3, padding="same", use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
                layers.MaxPooling2D(2),
            ]
        stack += [layers.Flatten(), layers.Dropout(0.3), layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *stack])
    model.compile(
        optimizer=keras.optimizers.AdamW(2e-3, weight_decay=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def train(turn: Turn) -> None:
        begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: turn())
        model.fit(
            image,
            label,
            batch_size=len(label) // steps,
            epochs=ENDLESS,
            callbacks=[begin],
            verbose=0,
        )

    return train


def lightning(job: str, source: Any, steps: int) -> Loop:
    """`Trainer.fit` on the CPU with AdamW, without progress bar, log and checkpoint."""
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    image, label = rows(source, steps)
    if job == "digits":
        stack: list[Any] = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)]
    else:
        stack = [nn.Unflatten(1, (1, 8, 8))]
        for inputs, outputs in ((1, 16), (16, 32)):
            stack += [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        stack += [nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 10)]

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*stack)

        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=1e-3)

    class Begin(Callback):
        def __init__(self, turn: Turn) -> None:
            self.turn = turn

        def on_train_epoch_start(self, *_: Any) -> None:
            self.turn()

    data = TensorDataset(torch.from_numpy(image), torch.from_numpy(label).long())
    loader = DataLoader(data, batch_size=len(label) // steps, shuffle=True)

    def train(turn: Turn) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning")
        Trainer(
            max_epochs=ENDLESS,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Begin(turn)],
        ).fit(Model(), loader)

    return train


PEERS: dict[str, Callable[[str, Any, int], Loop]] = {"keras": keras, "lightning": lightning}
NEEDS = {"keras": ("keras",), "lightning": ("lightning", "torch")}
