"""The resolved fleet as frozen values: the output of `compile` and the input of targets.

The hash of a fleet is its version.
"""
