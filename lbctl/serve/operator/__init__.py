"""Operators' overrides while the control plane is running: drains, weights and frozen pools."""
