"""`lbctl init`: writes a fleet file, from nothing or from running servers."""

KEY_FILE = "replica-key"
"""The file beside a fleet with the key that its servers ask for."""
