"""Simulations of the benefit of a picker: `python -m tests.benchmarks.picking`."""
