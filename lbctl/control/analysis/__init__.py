"""The analysis of rollouts: whether a new pool answers worse than the old ones in the same window. It is pure.

`statistics` has the tests, `evidence` the values, and `judge` the verdicts.
"""
