"""The lowest layer: values and helpers that every other package may import, and that do not import any of them."""
