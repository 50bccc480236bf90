"""Components that all processes share: logging, long-lived tasks, limits and outgoing connections."""
