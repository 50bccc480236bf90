"""A diagnostic xDS client that reads streams from any control plane and shares no code with the server."""
