"""A simulated model server: `replica.py PORT` answers every POST request and provides metrics like vLLM."""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = 0.05
"""Seconds that each request takes."""
METRICS = """\
vllm:num_requests_running{{model_name="m"}} {running}
vllm:num_requests_waiting{{model_name="m"}} 0
vllm:kv_cache_usage_perc{{model_name="m"}} {cache}
vllm:generation_tokens_total{{model_name="m"}} {tokens}
"""


class Engine:
    """Counters of the simulated server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._tokens = 0

    def answer(self) -> None:
        """Process one request."""
        self._count(1, 0)
        time.sleep(SECONDS)
        self._count(-1, 20)

    def page(self) -> str:
        """Return the metrics page."""
        return METRICS.format(running=self._running, cache=min(1.0, self._running / 32), tokens=self._tokens)

    def _count(self, running: int, tokens: int) -> None:
        with self._lock:
            self._running += running
            self._tokens += tokens


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    engine = Engine()

    def do_GET(self) -> None:
        """Answer /health and /metrics."""
        self._send(self.engine.page() if self.path == "/metrics" else "ok\n", "text/plain")

    def do_POST(self) -> None:
        """Answer a completion request."""
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.engine.answer()
        self._send('{"choices": [{"message": {"role": "assistant", "content": "hello"}}]}\n', "application/json")

    def _send(self, body: str, content_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing, because the proxy logs the requests."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
