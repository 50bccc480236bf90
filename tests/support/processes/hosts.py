"""A machine whose nginx or HAProxy serves its three sites, with the distribution's stock main file.

Only settings that need root or other ports are changed in that file: users, paths of logs, pid files and sockets.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.binaries import require
from tests.support.processes.client import Client
from tests.support.processes.fleet import put, started
from tests.support.processes.http1 import Response
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.proxies import Haproxy, Nginx, Proxy
from tests.support.processes.replicas import Replica

NGINX_STOCK = Path("/etc/nginx/nginx.conf")
HAPROXY_STOCK = Path("/etc/haproxy/haproxy.cfg")
_SITES = """\
map $http_x_tier $lb_path {{ default bronze; gold gold; }}
log_format lb_log0 '$remote_addr';
server {{ listen {host}:{static}; root {root}; add_header X-Site static always; }}
server {{
    listen {host}:{shared}; server_name one.example;
    location / {{ return 200 "one $lb_path\\n"; }}
}}
server {{
    listen {host}:{shared} default_server; server_name two.example; underscores_in_headers on;
    location / {{ proxy_pass http://{backend}; proxy_set_header X-Under $http_x_under; proxy_set_header Date ""; }}
}}
"""
_SECTIONS = """
frontend one
    bind {host}:{static}
    http-request return status 200 content-type text/plain string "one\\n" hdr x-site one

frontend pool_two
    bind {host}:{shared}
    use_backend two if {{ hdr(host) two.example }}
    default_backend three

backend two
    http-response set-header x-site two
    server r {backend}

backend three
    http-request deny deny_status 403
"""


class HostMachine:
    """A host's proxy, and clients of its sites."""

    def __init__(self, proxy: Proxy, main: Path, fragment: Path, static: int, shared: int) -> None:
        self.proxy = proxy
        self.main = main
        self.fragment = fragment
        self._static, self._shared = Client(static), Client(shared)

    def site(self) -> Response:
        """Return the response of the site that serves files."""
        return self._static.get("/page.txt")

    def answers(self) -> list[tuple[int, list[tuple[str, str]], bytes]]:
        """Return the responses of the three sites, with all headers except the time."""
        responses = [
            self._static.get("/page.txt"),
            self._static.get("/none"),
            self._shared.get("/", headers={"host": "one.example", "x-tier": "gold"}),
            self._shared.get("/", headers={"host": "two.example", "x_under": "kept"}),
            self._shared.get("/", headers={"host": "other.example"}),
        ]
        return [
            (item.status, [(name, value) for name, value in item.headers if name.lower() != "date"], item.body)
            for item in responses
        ]


@contextmanager
def nginx_host(backend: Replica) -> Iterator[HostMachine]:
    """Run nginx with its stock nginx.conf and three sites in conf.d."""
    with _directory() as directory:
        static, shared = free_port(), free_port()
        text = NGINX_STOCK.read_text().replace("/etc/nginx/", f"{directory}/").replace("user www-data;", "")
        text = re.sub(r"/var/log/nginx/|/run/", f"{directory}/", text)
        text = re.sub(r"(?m)^pid .*$", "", text)
        text = text.replace(f"include {directory}/modules-enabled/*.conf;", "")
        text = text.replace("error_log ", "error_log stderr; # ")
        sites = _SITES.format(host=HOST, static=static, shared=shared, root=directory / "www", backend=backend.address)
        put(directory, {"nginx.conf": text, "conf.d/sites.conf": sites, "www/page.txt": "a page\n"})
        (directory / "sites-enabled").mkdir()
        shutil.copy("/etc/nginx/mime.types", directory / "mime.types")
        nginx = Nginx(require("nginx"), directory, directory / "nginx.conf", [static, shared])
        with started(nginx):
            yield HostMachine(nginx, directory / "nginx.conf", directory / "conf.d" / "lbctl.conf", static, shared)


@contextmanager
def haproxy_host(backend: Replica) -> Iterator[HostMachine]:
    """Run HAProxy (master and worker) with its stock haproxy.cfg and its own sections, and an additional, empty
    file."""
    with _directory() as directory:
        static, shared = free_port(), free_port()
        text = re.sub(r"(?m)^\s+(log /dev/log|chroot|user|group|daemon).*$", "", HAPROXY_STOCK.read_text())
        text = text.replace("/run/haproxy/", f"{directory}/")
        sections = _SECTIONS.format(host=HOST, static=static, shared=shared, backend=backend.address)
        put(directory, {"haproxy.cfg": text + sections, "lbctl.cfg": "# Not yet.\n"})
        haproxy = _Haproxy(require("haproxy"), directory, directory / "haproxy.cfg", [static, shared])
        with started(haproxy):
            yield HostMachine(haproxy, directory / "haproxy.cfg", directory / "lbctl.cfg", static, shared)


class _Haproxy(Haproxy):
    def _command(self) -> list[str]:
        return [str(self.binary), "-W", "-db", "-f", str(self.config), "-f", str(self.directory / "lbctl.cfg")]


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="lbctl-e2e-"))
    directory.chmod(0o755)  # not accessible to the user that nginx serves as
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
