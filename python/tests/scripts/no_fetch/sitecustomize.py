"""The control: a companion that seeds no fetch."""

import os
import sys

sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[1])
from downshift_cockpit import fetch, imports

fetch.install = lambda module: None
imports.install()
