"""lbctl: one declarative model of an inference fleet, rendered to nginx, HAProxy and Envoy."""

__version__ = "1.0.0"
