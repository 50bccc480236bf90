"""The lowest layer, with values and helpers that every other package may import. It does not import any of them."""
