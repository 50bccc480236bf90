"""Real proxies in front of real replicas on loopback, and clients that report every detail.

The bodies of the tests are synchronous; everything that waits on sockets runs in one event loop in a separate thread
(`background`). The harness uses lbctl only as a command, and never reads its rendered files. It never retries.
"""
