"""The control plane: watches the files, configures the proxies, and reports their state.

`app` connects its parts.
"""
