"""HAProxy configurations, parsed according to the configuration manual's grammar, section by section."""
