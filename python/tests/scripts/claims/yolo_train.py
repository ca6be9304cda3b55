"""Trains a detector of Ultralytics on squares, with its own trainer, bar and checkpoints."""

import os
import sys

import numpy
import torch
from PIL import Image

from truth import Truth

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
truth = Truth(given["truth"])
out, epochs = given["out"], int(given["epochs"])
os.environ["YOLO_CONFIG_DIR"] = out
from ultralytics import YOLO, settings

settings.update({"sync": False})
torch.set_num_threads(1)
draw = numpy.random.default_rng(3)
for part, count in (("train", 16), ("val", 8)):
    for folder in ("images", "labels"):
        os.makedirs(os.path.join(out, "data", folder, part), exist_ok=True)
    for index in range(count):
        picture = numpy.zeros((64, 64, 3), numpy.uint8)
        x, y = draw.integers(0, 40, 2)
        picture[y : y + 24, x : x + 24] = 255
        path = os.path.join(out, "data", "{}", part, "{:02d}.{}".format(index, "{}"))
        Image.fromarray(picture).save(path.format("images", "png"))
        with open(path.format("labels", "txt"), "w", encoding="utf-8") as file:
            file.write("0 {} {} 0.375 0.375\n".format((x + 12) / 64, (y + 12) / 64))
data = os.path.join(out, "data.yaml")
with open(data, "w", encoding="utf-8") as file:
    file.write("path: {}/data\ntrain: images/train\nval: images/val\nnames: [square]\n".format(out))

model = YOLO(given["resume"] if "resume" in given else "yolo11n.yaml")
batches = 4


def record_batch(trainer):
    record_batch.step += 1
    truth.update(record_batch.step, None)
    truth.die_once(record_batch.step, int(given.get("die", 0)))


def record_start(trainer):
    record_batch.step = trainer.start_epoch * batches
    if trainer.start_epoch:
        truth.load(given["resume"], record_batch.step)


model.add_callback("on_train_start", record_start)
model.add_callback("on_train_batch_end", record_batch)
model.add_callback("on_model_save", lambda trainer: truth.save(str(trainer.last), record_batch.step))
options = dict(data=data, epochs=epochs, imgsz=64, batch=4, workers=0, device="cpu", project=out, name="run", exist_ok=True)
model.train(plots=False, amp=False, verbose=True, resume="resume" in given, **options)
truth.end()
