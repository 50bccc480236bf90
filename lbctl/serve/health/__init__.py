"""Active health checks by the control plane, for proxies that have none of their own."""
