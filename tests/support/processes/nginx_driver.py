"""A real nginx with an operator's configuration, and lbctl's driver for it, in this process.

`with driving(fleet) as site:`, then `site.converge(fleet)` like the control plane, with live weights and drains.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lbctl.apply.nginx.driver import NginxResult, NginxUpdater, prepared
from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.files import files_on_disk
from lbctl.ir.snapshot import Snapshot
from lbctl.targets.load import load
from lbctl.targets.prepare import Prepared
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes import background
from tests.support.processes.binaries import require
from tests.support.processes.client import Client
from tests.support.processes.fleet import put, started
from tests.support.processes.ports import free_port
from tests.support.processes.proxies import Nginx
from tests.support.weights import plain_weights

OWN = "of the owner's own"
_OWN = """\
error_log stderr warn;
events {{ }}
http {{
    access_log off;
    server {{
        listen 127.0.0.1:{port};
        return 200 "{own}";
    }}
}}
"""


class Site(Client):
    """The client of the fleet's first listener; `own` is a client of nginx's previous site."""

    keeps_connections = False

    def __init__(self, nginx: Nginx, port: int, own: Client, min_interval: str, command: tuple[str, ...]) -> None:
        super().__init__(port)
        self.nginx = nginx
        self.config = nginx.config
        self.own = own
        self.min_interval = min_interval
        self.command = command
        self.files = nginx.directory / "fleet"
        self.files.mkdir()
        self._driver: NginxUpdater | None = None

    @property
    def driver(self) -> NginxUpdater:
        assert self._driver is not None, "the first `prepared` or `converge` makes it"
        return self._driver

    def restart_driver(self) -> None:
        """Use a new driver, as after a restart of the control plane."""
        self._driver = None

    def prepared(
        self, fleet: Fleet, weights: Mapping[str, float] | None = None, drained: frozenset[str] = frozenset()
    ) -> Prepared:
        """Return the desired configuration; live weights and drains apply to the pool `pool`."""
        where = ["-p", f"{self.nginx.directory}/", "-c", str(self.config), "-g", "daemon off; pid nginx.pid;"]
        command = self.command or (str(self.nginx.binary), *where, "-s", "reload")
        reload = {"command": [*command], "min_interval": self.min_interval}
        edge = {"kind": "nginx", "config": str(self.config), "reload": reload}
        diagnostics = Diagnostics()
        loaded = load([str(write_fleet(self.files, {**fleet, "proxies": {"edge": edge}}))], diagnostics)
        assert loaded is not None, [str(item) for item in diagnostics]
        proxy = loaded.compiled.topology.proxies[0]
        if self._driver is None:
            self._driver = NginxUpdater(proxy, files_on_disk(loaded.source).get)
        live = plain_weights({"pool": weights} if weights else {})
        return prepared(
            proxy, loaded, Snapshot(loaded.compiled.topology, live, {"pool": drained}, secrets=loaded.secrets)
        )

    def converge(
        self, fleet: Fleet, weights: Mapping[str, float] | None = None, drained: frozenset[str] = frozenset()
    ) -> NginxResult:
        """Apply the fleet now, and return the result."""
        newest = self.prepared(fleet, weights, drained)
        return background.wait(self.driver.converge(newest))

    def put(self, files: Mapping[str, str | bytes]) -> None:
        """Write the files that the fleet names."""
        put(self.files, files)


@contextmanager
def driving(fleet: Fleet, *, min_interval: str = "30s", command: tuple[str, ...] = ()) -> Iterator[Site]:
    """Run nginx with an operator's configuration, without the fleet. `command` replaces nginx's own reload."""
    port, own = int(str(next(iter(fleet["listeners"].values()))["bind"]).rsplit(":", 1)[1]), Client(free_port())
    directory = Path(tempfile.mkdtemp(prefix="lbctl-e2e-"))
    directory.chmod(0o755)  # not accessible to the user that nginx serves as
    try:
        config = directory / "etc" / "nginx.conf"
        put(directory, {"etc/nginx.conf": _OWN.format(port=own.port, own=OWN)})
        nginx = Nginx(require("nginx"), directory, config, [own.port])
        with started(nginx):
            yield Site(nginx, port, own, min_interval, command)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
