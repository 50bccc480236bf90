"""`make bench-peers`: compare lbctl with other load balancers, with the same simulated engines and the same
arrivals."""
