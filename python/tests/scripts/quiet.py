"""Prints what a Python process under the companion has imported, and whether the next sitecustomize ran."""

import sys

print("HEAVY", sorted(name for name in ("torch", "numpy", "json", "socket") if name in sys.modules))
print("NEXT", getattr(sys, "next_sitecustomize_ran", False))
print("COMPANION", "downshift_cockpit.imports" in sys.modules)
