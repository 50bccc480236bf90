"""Decisions about weights and health. `step(State, Event) → State, effects`.

This package does no I/O and uses neither a clock nor randomness. Time and samples arrive in events, and actions are
returned as effects.
"""
