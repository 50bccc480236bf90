"""Updates a running HAProxy: through the Runtime API if possible, otherwise by a checked file and a reload."""
