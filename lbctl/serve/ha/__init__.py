"""Several processes forming one control plane: one process leads, and all of them serve proxies."""
