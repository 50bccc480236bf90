"""From what the user wrote to what is meant: defaults, references, capacities, precedence, in ordered small passes."""
