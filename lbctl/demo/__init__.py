"""`python -m lbctl.demo`: runs the quickstart on this machine, with a real Envoy and without a GPU."""
