"""Active health checks by the control plane, for proxies without their own checks."""
