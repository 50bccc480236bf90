"""Turns what the user wrote into the resolved fleet: defaults, references, capacities, precedence, in ordered steps."""
