"""Records the steps that a script itself has taken: one JSON object a line, names as downshift calls them."""

import json
import math
import os


class Truth:
    def __init__(self):
        self.file = open(os.environ["TRUTH"], "w", buffering=1)

    def write(self, step, **values):
        shown = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        self.file.write(json.dumps({"step": step, **shown}) + "\n")
