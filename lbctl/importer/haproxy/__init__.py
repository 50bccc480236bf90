"""HAProxy: read by the grammar that its configuration manual describes, section by section."""
