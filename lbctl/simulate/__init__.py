"""A discrete-event model of engines, proxies and the control loop, to measure weighting strategies."""
