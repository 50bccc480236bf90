"""Components that all processes share: logging, tasks that keep running, limits, outgoing connections."""
