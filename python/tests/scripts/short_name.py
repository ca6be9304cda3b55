"""Uses the short name of the package, as scripts under downshift may."""

import downshift
import downshift_cockpit

print("SAME", downshift is downshift_cockpit)
