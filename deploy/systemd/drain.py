"""ExecStop command of Envoy: refuse new connections, and wait for its requests and streams to end.

    python3 drain.py SOCKET SECONDS

SOCKET is the Unix socket of Envoy's admin interface. The script returns when no request is in flight, or after SECONDS.
"""

import http.client
import socket
import sys
import time

_INTERVAL = 0.5
"""Seconds between checks of the number of requests in flight."""


class Admin(http.client.HTTPConnection):
    """A connection to Envoy's admin interface."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, question: str, method: str = "GET") -> str:
    """Send a request to Envoy's admin interface, and return the response."""
    admin = Admin(path)
    try:
        admin.request(method, question)
        return admin.getresponse().read().decode()
    finally:
        admin.close()


def running(path: str) -> int:
    """Return the number of requests in flight."""
    lines = ask(path, "/stats?filter=^http%5C..*downstream_rq_active$").splitlines()
    counts = [line.rsplit(": ", 1) for line in lines if not line.startswith("http.admin.")]
    return sum(int(count) for _, count in counts)


def main() -> None:
    """Stop accepting connections, and wait for the requests in flight to end."""
    path, seconds = sys.argv[1], float(sys.argv[2])
    until = time.monotonic() + seconds
    ask(path, "/healthcheck/fail", "POST")  # responses close their connection, and HTTP/2 clients get GOAWAY
    ask(path, "/drain_listeners", "POST")
    while running(path) and time.monotonic() < until:
        time.sleep(_INTERVAL)


if __name__ == "__main__":
    main()
