"""Keras on torch: its bar, and its CSV logger."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
import torch
from truth import Truth

torch.set_num_threads(1)
keras.utils.set_random_seed(0)
truth = Truth()
BATCHES = 12


def shown(value):
    """As keras.utils.Progbar prints it."""
    return float(f"{value:.4f}" if abs(value) > 1e-3 else f"{value:.4e}")


class Record(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        values = {name: shown(float(value)) for name, value in logs.items()}
        truth.write(self.epoch * BATCHES + batch + 1, **values)

    def on_epoch_end(self, epoch, logs=None):
        values = {name: shown(float(value)) for name, value in logs.items()}
        values = {name.replace("val_", "eval_"): value for name, value in values.items()}
        truth.write((epoch + 1) * BATCHES, **values)


inputs = numpy.random.rand(96, 8).astype("float32")
wanted = (inputs.sum(1) > 4).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(inputs, wanted, batch_size=8, epochs=3, validation_data=(inputs[:24], wanted[:24]),
          callbacks=[Record(), keras.callbacks.CSVLogger("log.csv")])
