"""An xDS client for diagnosis: reads the streams of any control plane, and shares no code with the server."""
