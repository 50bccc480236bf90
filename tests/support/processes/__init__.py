"""Real proxies before real replicas on loopback, and clients that hide nothing.

The bodies of the tests are synchronous; everything that waits on sockets runs in one event loop in a thread of its own
(`background`). The harness knows lbctl only as a command, and never reads what it rendered. It refuses to retry.
"""
