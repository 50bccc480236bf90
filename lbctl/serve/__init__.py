"""The control plane: watches the files, configures the proxies, and reports its state. Wired together in `app`."""
