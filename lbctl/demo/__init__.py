"""`lbctl demo`, which compares weights from `serve` with static weights, using a real proxy and simulated replicas."""
