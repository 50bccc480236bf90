"""The resolved fleet as frozen values: the output of `compile`, the input of targets, and what a version hashes."""
