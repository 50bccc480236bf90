"""Traffic by the counts of the running proxies: requests, errors, requests in flight, and the condition of replicas.

Sources read one kind of proxy each and report to the `TrafficLedger`; the views, the metrics and the analysis of
rollouts read it. A value that no proxy reports is unknown, never 0.
"""
