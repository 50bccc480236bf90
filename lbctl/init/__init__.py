"""`lbctl init`, which writes a fleet file from a template or from running servers."""

KEY_FILE = "replica-key"
"""Name of the file next to the fleet that contains the servers' key."""
