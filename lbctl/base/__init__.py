"""The lowest layer: values and helpers that every other package may import. It imports none of them."""
