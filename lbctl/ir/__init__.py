"""The resolved fleet as frozen values, which are the output of `compile` and the input to targets.

A fleet's hash is its version.
"""
