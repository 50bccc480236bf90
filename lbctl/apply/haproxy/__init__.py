"""Updates a running HAProxy: through the Runtime API if possible, otherwise with a checked file and a reload."""
