"""The control plane's outgoing connections: name resolution, and the addresses to which lbctl never connects."""
