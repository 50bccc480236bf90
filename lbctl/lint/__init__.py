"""Lint: rules about configuration that is valid but risky for inference.

Each rule is a function, and has a page that explains it.
"""
