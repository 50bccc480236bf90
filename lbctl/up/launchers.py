"""Defines how `up` runs each kind of proxy: its entry in `proxies`, its start files, and its command.

A proxy runs in the foreground in a private directory. Envoy gets its entire configuration over xDS. HAProxy and nginx
start with a rendered configuration. `lbctl serve` updates it through the Runtime API and by checked reloads.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from lbctl.base.registry import Registry
from lbctl.ir.address import Address
from lbctl.targets.prepare import Prepared
from lbctl.targets.target import Bundle

NAME = "up"
"""Name of the proxy's entry, which is also the node ID of an Envoy."""
XDS_SOCKET, ADMIN_SOCKET, PID_FILE = "xds.sock", "admin.sock", "proxy.pid"
"""Files in the private directory: the xDS socket of `serve` and the admin socket of an Envoy, and the proxy's pid."""


class Launcher(Protocol):
    """Runs proxies of one kind."""

    def entry(self, binary: str, place: Path) -> Mapping[str, object]:
        """Return the entry in `proxies` with which `lbctl serve` manages the proxy in `place`."""

    def files(self, prepared: Prepared, place: Path) -> Bundle:
        """Return the files that the proxy needs to start."""

    def command(self, binary: str, place: Path) -> list[str]:
        """Return the command that runs the proxy in the foreground."""


class _Envoy:
    def entry(self, binary: str, place: Path) -> Mapping[str, object]:
        del binary
        return {"nodes": [NAME], "admin": f"unix:{place / ADMIN_SOCKET}"}

    def files(self, prepared: Prepared, place: Path) -> Bundle:
        from lbctl.targets.envoy.bootstrap import Joining, bootstrap

        del prepared
        admin = Address(path=str(place / ADMIN_SOCKET))
        return bootstrap(Joining(Address(path=str(place / XDS_SOCKET)), NAME, admin=admin))

    def command(self, binary: str, place: Path) -> list[str]:
        # At each start, the `misc` component logs ten long warnings about fields whose API is still under development.
        levels = ["--log-level", "warning", "--component-log-level", "misc:error"]
        return [binary, "-c", str(place / "envoy.yaml"), "--disable-hot-restart", *levels]


class _Rendered:
    """A proxy whose configuration is a rendered file."""

    def files(self, prepared: Prepared, place: Path) -> Bundle:
        return prepared.target.render(prepared.rooted(str(place)))


class _Haproxy(_Rendered):
    def entry(self, binary: str, place: Path) -> Mapping[str, object]:
        del binary
        reload = f"kill -USR2 $(cat {shlex.quote(str(place / PID_FILE))})"
        return {
            "config": str(place / "haproxy.cfg"),
            "runtime_api": str(place / "haproxy.sock"),
            "reload": {"command": ["/bin/sh", "-c", reload]},
        }

    def command(self, binary: str, place: Path) -> list[str]:
        return [binary, "-W", "-db", "-f", str(place / "haproxy.cfg")]


class _Nginx(_Rendered):
    def entry(self, binary: str, place: Path) -> Mapping[str, object]:
        command = [*self.command(binary, place), "-s", "reload"]
        return {"config": str(place / "nginx.conf"), "reload": {"command": command, "min_interval": "10s"}}

    def command(self, binary: str, place: Path) -> list[str]:
        globals_ = f"daemon off; pid {place / 'nginx.pid'};"
        return [binary, "-p", f"{place}/", "-c", str(place / "nginx.conf"), "-e", "stderr", "-g", globals_]


LAUNCHERS: Registry[Launcher] = Registry({"envoy": _Envoy(), "haproxy": _Haproxy(), "nginx": _Nginx()})
"""Kinds of proxies that `up` can run, in order of preference."""
