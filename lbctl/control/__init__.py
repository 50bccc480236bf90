"""What is decided from the outside of the fleet: weights and health. `step(State, Event) → State, effects`.

No I/O, no clock, no randomness: time and samples arrive in events, and what must happen leaves as effects.
"""
