"""Parts that all processes of the control plane share: logging, tasks that keep running, limits, outgoing connections."""
