"""Scrapes metrics from replicas and GPUs, and runs the control loop on them."""
