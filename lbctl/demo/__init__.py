"""`lbctl demo`: a real proxy and `lbctl serve` before simulated replicas that fail, measured beside static weights."""
