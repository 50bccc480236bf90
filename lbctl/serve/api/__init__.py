"""The HTTP API of the control plane: its types, its documents, its server and its event stream."""
