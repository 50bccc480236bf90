"""Analyses whether a rollout's new pool performs worse than the old ones in the same window, using only pure functions.

`statistics` contains the tests, `evidence` contains the values, and `judge` contains the verdicts.
"""
