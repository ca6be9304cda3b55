"""The sitecustomize that the companion's one hides."""

import sys

sys.next_sitecustomize_ran = True
