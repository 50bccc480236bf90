"""Turns the fleet as written into the resolved fleet.

Its ordered steps fill in defaults and check references, capacities and precedence.
"""
