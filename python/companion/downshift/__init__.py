"""`import downshift` under `downshift run`: another name of `downshift_cockpit`. PyPI's `downshift` is another project."""

import sys

import downshift_cockpit

sys.modules[__name__] = downshift_cockpit
