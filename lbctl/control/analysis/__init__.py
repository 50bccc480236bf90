"""The analysis of rollouts: whether a new pool performs worse than the old ones in the same window. It is pure.

`statistics` contains the tests, `evidence` the values, and `judge` the verdicts.
"""
