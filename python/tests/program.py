"""The program that the tests run: the one that DOWNSHIFT_PROGRAM names, or the debug build."""

import os

BUILT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target/debug/downshift")
PROGRAM = os.path.abspath(os.environ.get("DOWNSHIFT_PROGRAM") or BUILT)
