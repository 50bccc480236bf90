"""Traffic as counted by the running proxies: requests, errors, requests in flight, and the replicas' condition.

Each source reads one kind of proxy and reports to the `TrafficLedger`; the views, the metrics and the analysis of
rollouts read the ledger. A value that no proxy reports is unknown, never 0.
"""
