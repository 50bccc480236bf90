"""Scrapes the metrics of replicas and GPUs, and runs the control loop on them."""
