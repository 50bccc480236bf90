"""Active health checks performed by the control plane, for proxies without checks."""
