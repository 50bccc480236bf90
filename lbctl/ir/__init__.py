"""The resolved fleet as frozen values: the output of `compile` and the input of targets. Its hash is its version."""
