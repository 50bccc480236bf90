"""Echo servers on loopback, one per replica. Each response names the replica and contains the request it received.

One of them also acts as the external authorization service and accepts all requests.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lbctl.apply.reserved_ports import LOOPBACK


@contextmanager
def echoes(addresses: Mapping[str, Sequence[str]], sessions: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Run an echo server for each address in the source, with additional response headers.

    If a request has no session in the `sessions` header, the server assigns one. Yields a map from each address to the
    port that replaces it.
    """
    servers = {
        address: _Server((LOOPBACK, 0), address, given, sessions.get(address, ""))
        for address, given in sorted(addresses.items())
    }
    for server in servers.values():
        threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
    try:
        yield {address: server.server_address[1] for address, server in servers.items()}
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, place: tuple[str, int], replica: str, given: Sequence[str], session: str) -> None:
        super().__init__(place, _Handler)
        self.replica = replica
        self.given = given
        self.session = session

    def handle_error(self, request: object, client_address: object) -> None:
        """Do nothing. Connections are expected to close when a proxy exits."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one_request(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(65537)
        if self.raw_requestline and self.parse_request():
            self.close_connection = False
            self._answer()

    def _answer(self) -> None:
        received = {
            "replica": self.server.replica,
            "method": self.command,
            "path": self.path,
            "headers": [[name.lower(), self._stands_for(value)] for name, value in self.headers.items()],
            "body": self._body().decode("latin-1"),
        }
        content = json.dumps(received).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        for name in self.server.given:
            self.send_header(name, "stand-in")
        if self.server.session and self.server.session not in self.headers:
            self.send_header(self.server.session, f"stand-in-{uuid.uuid4()}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _stands_for(self, value: str) -> str:
        """Return a header's value with the echo server's address replaced by its replica's address.

        By default, proxies derive the Host header from this address.
        """
        own = f"{LOOPBACK}:{self.server.server_address[1]}"
        return re.sub(":(?:80|443)$", "", self.server.replica) if value == own else value

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is the server's
        """Do nothing."""
