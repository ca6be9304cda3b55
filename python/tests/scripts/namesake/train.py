"""Imports the package that lies beside it, where downshift's own is meant."""

import downshift

print("ATTACH", hasattr(downshift, "attach"))
