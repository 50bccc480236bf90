"""What a picker is worth, by simulation: `python -m tests.benchmarks.picking`."""
