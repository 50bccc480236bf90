"""`make bench-peers`: lbctl beside what people use today, before the same simulated engines and the same arrivals."""
