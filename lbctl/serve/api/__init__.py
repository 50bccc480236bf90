"""The control plane's HTTP API: its types, documents, server and event stream."""
