"""Traffic as the running proxies count it: requests, errors, requests in flight, and each proxy's view of a replica.

Sources read one kind of proxy each and report to the `TrafficLedger`; the views, the metrics and the analysis of
rollouts read it. What no proxy reports is unknown, never 0.
"""
