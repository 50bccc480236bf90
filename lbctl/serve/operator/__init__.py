"""Operators' overrides while the control plane runs: drains, weights and frozen pools."""
