"""Several processes as one control plane: one process leads, and all serve proxies."""
