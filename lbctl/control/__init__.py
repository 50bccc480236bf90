"""Decisions about weights and health. `step(State, Event) → State, effects`.

No I/O, no clock, no randomness: time and samples arrive in events, and actions are returned as effects.
"""
