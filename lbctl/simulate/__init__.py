"""A discrete-event model of engines, proxies and the control loop, used to evaluate weighting strategies."""
