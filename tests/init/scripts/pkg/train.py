"""Started as `python -m pkg.train`."""

from .options import parse

print(parse())
