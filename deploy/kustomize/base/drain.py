"""preStop hook of Envoy: ask clients to connect elsewhere, and wait for the requests in flight to end.

The Service needs a moment to remove the pod. Until then, Envoy accepts new connections.

    python3 drain.py ADMIN SECONDS [SETTLE]
"""

import sys
import time
import urllib.request

SETTLE = 10.0
"""Seconds during which the Service may still send new connections to this pod."""


def ask(admin: str, path: str, method: str = "GET") -> str:
    """Send a request to Envoy's admin interface, and return the response."""
    with urllib.request.urlopen(urllib.request.Request(f"http://{admin}{path}", method=method), timeout=5) as answer:
        return answer.read().decode()


def running(admin: str) -> int:
    """Return the number of requests in flight."""
    lines = ask(admin, "/stats?filter=http.*downstream_rq_active$").splitlines()
    counts = [line.rsplit(": ", 1) for line in lines if not line.startswith("http.admin.")]
    return sum(int(count) for _, count in counts)


def main() -> None:
    """Fail the health check, and return when no request is in flight or the time limit is reached."""
    admin, seconds = sys.argv[1], float(sys.argv[2])
    settle = float(sys.argv[3]) if len(sys.argv) > 3 else SETTLE
    until = time.monotonic() + seconds
    ask(admin, "/healthcheck/fail", "POST")  # responses have `connection: close`, and HTTP/2 clients get GOAWAY
    time.sleep(min(settle, seconds))
    while running(admin) and time.monotonic() < until:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
