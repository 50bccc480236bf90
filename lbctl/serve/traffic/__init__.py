"""Traffic as counted by the running proxies: requests, errors, requests in flight, and the replicas' conditions.

Each source reads one kind of proxy and reports to the `TrafficLedger`, which is read by the views, the metrics and the
analysis of rollouts. A value that no proxy reports is unknown, never 0.
"""
