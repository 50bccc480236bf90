"""lbctl: one declarative model of an inference fleet, rendered to nginx, HAProxy and Envoy."""

__version__ = "0.1.0"
