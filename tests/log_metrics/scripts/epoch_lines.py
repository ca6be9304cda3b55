"""Plain lines in the forms of PyTorch's tutorials, whose step starts over with each epoch. Needs Python alone."""

import random
import sys

from truth import Truth

truth = Truth()
random.seed(0)
weights = [0.0] * 4
STEPS, EPOCHS = 50, 3


def step():
    """One step of gradient descent on a sum of four numbers."""
    sample = [random.gauss(0, 1) for _ in weights]
    error = sum(w * x for w, x in zip(weights, sample)) - sum(sample)
    for place, x in enumerate(sample):
        weights[place] -= 0.02 * error * x
    return error * error


def evaluate(epoch):
    """The lines of a validation in between, with a count of its own."""
    for count in range(1, 4):
        print(f"Validation: Step {count}/3, Loss: {step() / 2:.4f}")
    print(f"Epoch {epoch} done, val loss: {step() / 2:.4f}")


def sized():
    """`Epoch [1/3], Step [10/50], Loss: 0.5`: the epoch and its size."""
    for epoch in range(EPOCHS):
        for i in range(STEPS):
            loss = step()
            if (i + 1) % 10 == 0:
                print(f"Epoch [{epoch + 1}/{EPOCHS}], Step [{i + 1}/{STEPS}], Loss: {loss:.4f}")
                truth.write(epoch * STEPS + i + 1, loss=float(f"{loss:.4f}"))
        evaluate(epoch + 1)


def pairs():
    """`[1,    20] loss: 0.500`, the mean since the line before: an epoch has 50 steps, and nobody says so."""
    for epoch in range(EPOCHS):
        running = 0.0
        for i in range(STEPS):
            running += step()
            if i % 20 == 19:
                print(f"[{epoch + 1}, {i + 1:5d}] loss: {running / 20:.3f}")
                truth.write(epoch * STEPS + i + 1, loss=float(f"{running / 20:.3f}"))
                running = 0.0


def every():
    """`[1,     1] loss: 0.500`: every step is printed, so an epoch has as many as were counted."""
    for epoch in range(EPOCHS):
        for i in range(STEPS):
            loss = step()
            print(f"[{epoch + 1}, {i + 1:5d}] loss: {loss:.3f}")
            truth.write(epoch * STEPS + i + 1, loss=float(f"{loss:.3f}"))


def headed():
    """The epoch on a line of its own, and the step with its size below it, counted from 0."""
    for epoch in range(EPOCHS):
        print(f"Epoch {epoch + 1}\n-------------------------------")
        for i in range(STEPS):
            loss = step()
            if i % 10 == 0:
                print(f"step {i}/{STEPS} loss: {loss:>7f}")
                truth.write(epoch * STEPS + i, loss=float(f"{loss:>7f}"))


def unnamed():
    """No epoch and no size: every step is printed."""
    for epoch in range(EPOCHS + 1):
        for i in range(STEPS):
            loss = step()
            print(f"step {i + 1} loss {loss:.4f}")
            truth.write(epoch * STEPS + i + 1, loss=float(f"{loss:.4f}"))


{"sized": sized, "pairs": pairs, "every": every, "headed": headed, "unnamed": unnamed}[sys.argv[1]]()
