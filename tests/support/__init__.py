"""What the tests share: fleets, views, servers and clients that stand for the world around lbctl."""
