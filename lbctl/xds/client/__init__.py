"""An xDS client for people: reads any control plane's streams, and shares no code with the server."""
