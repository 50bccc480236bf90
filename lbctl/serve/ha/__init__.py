"""Several processes as one control plane: one leads, all serve proxies."""
