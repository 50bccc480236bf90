"""Components shared by all processes: logging, long-lived tasks, limits and outgoing connections."""
