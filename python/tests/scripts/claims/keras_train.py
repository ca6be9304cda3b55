"""Trains with Keras on PyTorch: fit() with a validation and a checkpoint for each epoch."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

from truth import Truth

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
truth = Truth(given["truth"])
out, epochs, batches = given["out"], int(given["epochs"]), 12
os.makedirs(out, exist_ok=True)
keras.utils.set_random_seed(3)
inputs = numpy.random.randn(batches * 8, 6).astype("float32")
targets = (inputs.sum(axis=1) > 0).astype("float32")
begin = 0
if "resume" in given:
    model = keras.models.load_model(given["resume"])
    begin = int(os.path.basename(given["resume"]).split("-")[1].split(".")[0])
    truth.load(given["resume"], begin * batches)
else:
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])


class Record(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.step, self.epoch_losses = begin * batches, []

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        truth.update(self.step, None)
        truth.die_once(self.step, int(given.get("die", 0)))

    def on_epoch_end(self, epoch, logs=None):
        truth.evaluate(self.step, loss=logs["val_loss"], accuracy=logs["val_accuracy"])
        truth.save(os.path.join(out, "epoch-{:02d}.keras".format(epoch + 1)), self.step)


model.fit(
    inputs, targets, batch_size=8, epochs=epochs, initial_epoch=begin, verbose=2, validation_data=(inputs[:32], targets[:32]),
    callbacks=[keras.callbacks.ModelCheckpoint(os.path.join(out, "epoch-{epoch:02d}.keras")), Record()],
)  # fmt: skip
truth.end()
