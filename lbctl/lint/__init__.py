"""Lint: rules about what is legal but unwise for inference. Each rule is a function with a page that explains it."""
