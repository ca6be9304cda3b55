"""Imports the package that lies last on the path, as an installed one does."""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "namesake"))
import downshift  # noqa: E402

print("ATTACH", hasattr(downshift, "attach"))
