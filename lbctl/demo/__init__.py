"""`lbctl demo`: a real proxy and `lbctl serve` with simulated replicas and faults, compared with static weights."""
