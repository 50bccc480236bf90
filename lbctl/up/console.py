"""The output of `up`: its programs' lines on standard error, and information about the fleet once it is ready.

The lines are in colour on a terminal and plain elsewhere. If standard error is closed, nothing is printed, and the
programs keep running until they are shut down in order.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from lbctl.apply.api_keys import HASH
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward
from lbctl.ir.topology import Topology
from lbctl.serve.settings import ServeSettings
from lbctl.targets import target
from lbctl.up.fleet_additions import TENANT
from lbctl.up.launchers import NAME
from lbctl.up.prepare import PreparedRun

_COLOURS = {"serve": "cyan"}
_PROXY_COLOUR = "magenta"
_ERROR = re.compile(r"^\S+ error |\[(?:error|critical|crit|alert|emerg)\]|\[ALERT\]")
_WARNING = re.compile(r"^\S+ warn |\[warn(?:ing)?\]|\[WARNING\]")
_WIDTH = 7
_CHAT = "/v1/chat/completions"
_MODELS = "/v1/models"
_UNKNOWN_KEY = "$KEY"


class Console:
    """Prints output lines, each prefixed with its program's name."""

    def __init__(self) -> None:
        self._colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    def line(self, name: str, line: str) -> None:
        """Print one line of the program `name`."""
        text = line if line.isprintable() else "".join(char if char.isprintable() else "·" for char in line)
        if not self._colours:
            _echo(f"{name:<{_WIDTH}} | {text}")
            return
        prefix = click.style(f"{name:<{_WIDTH}} |", fg=_COLOURS.get(name, _PROXY_COLOUR))
        colour = "red" if _ERROR.search(line) else "yellow" if _WARNING.search(line) else None
        _echo(f"{prefix} {click.style(text, fg=colour) if colour else text}", colours=True)

    def message(self, text: str) -> None:
        """Print a message of `up` itself."""
        _echo(f"lbctl: {text}")


def _echo(text: str, *, colours: bool = False) -> None:
    try:
        click.echo(text, err=True, color=colours or None)
    except OSError:
        _discard_standard_error()


def _discard_standard_error() -> None:
    """Discard all further output, as well as buffered output, which Python would flush on exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)


def banner(prepared: PreparedRun, settings: ServeSettings, log: Path) -> str:
    """Return the text, with one aligned line per fact; `log` is the proxy's log file."""
    facts = list(_facts(prepared, settings, log))
    width = max(len(name) for name, _ in facts)
    return "\n".join(["", *(f"  {name:<{width}}  {value}" for name, value in facts), ""])


def _facts(prepared: PreparedRun, settings: ServeSettings, log: Path) -> Iterator[tuple[str, str]]:
    topology, keys = prepared.loaded.compiled.topology, prepared.keys
    for listener in topology.listeners:
        yield "URL", url_of(listener)
    for file, key in keys.new.items():
        yield "key", f"{key}   (shown only once; its entry is in {file})"
    for file in dict.fromkeys(file for file in keys.by_route.values() if file not in keys.new):
        yield "key", _existing_key(file, topology)
    for listener in topology.listeners[:1]:
        yield "try", _request(prepared, listener, topology)
    scheme = "https" if settings.control.api_tls else "http"
    api = f"{scheme}://{settings.control.api_bind.from_here}"
    yield "dashboard", f"{api}/"
    if any(listener.access_log.format == "json" for listener in topology.listeners):
        shown = f"tail -f {shlex.quote(str(log))}   (one line for each request; the file is deleted when `up` ends)"
        yield "requests", shown
    yield "status", f"lbctl status --server {api}   (for changes, add --token-file {shlex.quote(str(settings.token))})"


def _existing_key(file: Path, topology: Topology) -> str:
    """Return the location of the key, and a command that creates another key and stores it in a shell variable."""
    kind = next((item.kind for item in topology.proxies if item.name == NAME), None)
    plain = () if kind is not None and target(kind).compares_hashes else ("--plain",)
    make = f"KEY=$({shlex.join(['lbctl', 'key', 'new', TENANT, *plain, '-f', str(file)])})"
    if _lacks_clear_keys(file):
        return f"unknown, because {file} contains only hashes; create a key: {make}"
    return f"use a key from {file}, or create one: {make}"


def _lacks_clear_keys(file: Path) -> bool:
    try:
        lines = [line for line in file.read_text("utf-8", "replace").splitlines() if line and not line.startswith("#")]
    except OSError:
        return False
    return all(line.startswith(HASH) for line in lines)


def url_of(listener: Listener) -> str:
    """Return the listener's URL for clients on this machine."""
    scheme = "https" if listener.tls else "http"
    return str(listener.bind) if listener.bind.path else f"{scheme}://{listener.bind.from_here}"


def _request(prepared: PreparedRun, listener: Listener, topology: Topology) -> str:
    """Return a curl command for a request to a replica: a chat request if the model is known, otherwise a GET."""
    forwards = {route.name: route.action for route in topology.routes if isinstance(route.action, Forward)}
    rule = next((rule for rule in listener.rules if rule.route in forwards), None)
    options = ["-k"] if listener.tls else []
    base = url_of(listener)
    if listener.bind.path:
        options, base = [*options, "--unix-socket", listener.bind.path], "http://localhost"
    if rule is None:
        return shlex.join(["curl", *options, f"{base}/"])
    if rule.host:
        options += ["-H", f"host: {rule.host.replace('*', 'a')}"]
    path, body = _path_and_body(rule, forwards[rule.route].shares[0].pool, topology)
    command = shlex.join(["curl", *options, f"{base}{path}", *body])
    return command + _credential(prepared, rule.route)


def _credential(prepared: PreparedRun, route: str) -> str:
    """Return the curl option that sends the key; empty for a route without keys."""
    auth = next(item.auth for item in prepared.loaded.compiled.topology.routes if item.name == route)
    file = prepared.keys.by_route.get(route)
    if file is None or auth is None or auth.api_keys is None:
        return ""
    header = auth.api_keys.headers[0]
    scheme = "Bearer " if header == "authorization" else ""
    return f' -H "{header}: {scheme}{prepared.keys.new.get(file, _UNKNOWN_KEY)}"'


def _path_and_body(rule: Rule, pool: str, topology: Topology) -> tuple[str, list[str]]:
    prefix = rule.path.value if rule.path.kind != "regex" else "/"
    model = next((item.model for item in topology.pools if item.name == pool), None)
    name = next((item for item in rule.models if not item.endswith("*")), model.name if model else "")
    chat = f"{_CHAT}/".startswith(prefix.rstrip("/") + "/") and (rule.path.kind == "prefix" or prefix == _CHAT)
    if not chat:
        return prefix, []
    if not name:
        return _MODELS, []
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20})
    return _CHAT, ["-H", "content-type: application/json", "-d", body]
