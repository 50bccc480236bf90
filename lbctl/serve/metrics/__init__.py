"""The control plane's own metrics."""
