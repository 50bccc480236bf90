"""preStop of the Envoy: clients are asked to go elsewhere, and the requests that run are waited for.

The Service needs a moment to leave the pod out, so that new connections still come: Envoy serves them meanwhile.

    python3 drain.py ADMIN SECONDS [SETTLE]
"""

import sys
import time
import urllib.request

SETTLE = 10.0
"""Seconds for which a Service may still send new connections here."""


def ask(admin: str, path: str, method: str = "GET") -> str:
    """Return what Envoy's administration answers."""
    with urllib.request.urlopen(urllib.request.Request(f"http://{admin}{path}", method=method), timeout=5) as answer:
        return answer.read().decode()


def running(admin: str) -> int:
    """Return how many requests run now."""
    lines = ask(admin, "/stats?filter=http.*downstream_rq_active$").splitlines()
    counts = [line.rsplit(": ", 1) for line in lines if not line.startswith("http.admin.")]
    return sum(int(count) for _, count in counts)


def main() -> None:
    """Fail the health check, and return once no request runs or the time is up."""
    admin, seconds = sys.argv[1], float(sys.argv[2])
    settle = float(sys.argv[3]) if len(sys.argv) > 3 else SETTLE
    until = time.monotonic() + seconds
    ask(admin, "/healthcheck/fail", "POST")  # answers now say `connection: close`, HTTP/2 clients get GOAWAY
    time.sleep(min(settle, seconds))
    while running(admin) and time.monotonic() < until:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
