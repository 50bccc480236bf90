"""The fleet as the user writes it: YAML with positions, and strict typed sections."""
