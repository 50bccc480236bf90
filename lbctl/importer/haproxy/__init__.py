"""HAProxy: parsed by the grammar in its configuration manual, section by section."""
