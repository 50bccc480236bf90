"""The control plane: watches the files, configures the proxies, and reports its state.

`app` wires its parts together.
"""
