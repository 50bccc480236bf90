"""Updates a running HAProxy: by the Runtime API where it can, else by a checked file and a reload."""
