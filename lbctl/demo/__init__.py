"""`python -m lbctl.demo`: the quickstart on this machine, with a real Envoy and without a GPU."""
