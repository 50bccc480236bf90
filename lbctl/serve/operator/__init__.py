"""What operators ask for while the control plane runs: drains, weights, frozen pools."""
