"""The HTTP API of the control plane: its types, the documents it answers, the server, and the events it streams."""
