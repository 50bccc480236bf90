"""The resolved fleet as frozen values: what compile makes, what targets read, what a version is a hash of."""
