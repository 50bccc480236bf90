"""Updates a running HAProxy, through the Runtime API if possible, and otherwise with a checked file and a reload."""
