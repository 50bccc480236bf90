"""Turns the fleet as written into the resolved fleet.

The steps run in order: they fill in defaults and check references, capacities and precedence.
"""
