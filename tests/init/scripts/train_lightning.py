"""Trains with Lightning."""

import argparse

import lightning as L

from model import Model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    L.Trainer(max_epochs=3).fit(Model(options.lr))


if __name__ == "__main__":
    main()
