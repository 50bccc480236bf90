"""A discrete-event model of engines, proxies and the control loop, for measuring weighting."""
