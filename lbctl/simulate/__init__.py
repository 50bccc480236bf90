"""A fleet without machines: engines, proxies and the real control loop as discrete events. One seed, one run."""
