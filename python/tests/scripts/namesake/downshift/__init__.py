"""Another package of this name, as PyPI has one."""
