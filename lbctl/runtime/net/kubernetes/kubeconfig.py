"""Reads a context's cluster and credentials from one kubeconfig, reporting the position of every problem.

It supports files that define several clusters, written by any provider's tools. Unsupported features (`proxy-url`,
`auth-provider`) are rejected if the selected context needs them. Relative paths are relative to the kubeconfig, as for
kubectl. A kubeconfig that runs a credentials program must belong to root or to the current user and must not be
writable by other users, because they could otherwise run programs here.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lbctl.base.diagnostics import Diagnostics, did_you_mean, show
from lbctl.base.errors import reason_of
from lbctl.compile.allowed_files import VARIABLE, is_allowed, is_below
from lbctl.compile.files import read_regular
from lbctl.model import yaml
from lbctl.model.node import Node
from lbctl.runtime.net.kubernetes.cluster import (
    CallerIdentity,
    Cluster,
    ClusterCredentials,
    ClusterError,
    FixedAccess,
    TokenFile,
    bearer,
    in_cluster,
)
from lbctl.runtime.net.kubernetes.exec_plugin import API_VERSIONS, ExecCommand, ExecPlugin

_MAX_BYTES = 4 << 20


def ambient(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster in KUBECONFIG, as kubectl does, or else the current pod's cluster. Raises ClusterError."""
    named = environment.get("KUBECONFIG", "")
    if not named:
        return in_cluster(environment=environment)
    if os.pathsep in named:
        raise ClusterError(f"KUBECONFIG lists several files, but lbctl reads only one: {named}")
    return read(Path(named), of_operator=True)


def read(
    file: Path, context: str | None = None, *, of_operator: bool = False, control_files: Sequence[str] = ()
) -> Cluster:
    """Return a context's cluster; the default is the current context. Raises ClusterError with file, line and column.

    A kubeconfig that is neither `of_operator` nor in a directory that the operator allows is controlled by the fleet's
    author. Its tokens and certificates must then be below its own directory or below a directory that the operator
    allows, and must not be among `control_files`.
    """
    try:
        data = read_regular(file, _MAX_BYTES)
    except OSError as error:
        raise ClusterError(f"{file}: the kubeconfig cannot be read: {reason_of(error)}") from None
    diagnostics = Diagnostics()
    root = yaml.read(data, str(file), diagnostics)
    for item in diagnostics:
        raise ClusterError(f"{item.position}: {item.message}")
    if root is None:
        raise ClusterError(f"{file}: not a kubeconfig")
    return _Reader(file, root, of_operator or is_allowed(file), control_files).cluster(context)


class _Reader:
    """One kubeconfig."""

    def __init__(self, file: Path, root: Node, of_operator: bool, control_files: Sequence[str]) -> None:
        self._file = file
        self._root = root
        self._of_operator = of_operator
        self._control_files = control_files

    def cluster(self, context: str | None) -> Cluster:
        name = context or _text(self._root, "current-context")
        if not name:
            raise _error(self._root, "no context is selected, and the file has no current-context")
        named = None if context else _child(self._root, "current-context")
        chosen = self._entry("contexts", "context", name, named or _child(self._root, "contexts"))
        cluster = self._entry("clusters", "cluster", _needed(chosen, "cluster"), _child(chosen, "cluster"))
        user_name = _text(chosen, "user")
        user = self._entry("users", "user", user_name, _child(chosen, "user")) if user_name else None
        server = self._server(cluster)
        return Cluster(
            server,
            self._pem(cluster, "certificate-authority"),
            not _is_true(cluster, "insecure-skip-tls-verify"),
            _text(cluster, "tls-server-name") or None,
            self._credentials(user, server) if user else FixedAccess(),
        )

    def _entry(self, section: str, key: str, name: str, place: Node | None) -> Node:
        """Return the entry with this name from one of the file's lists; `place` is where the name is used."""
        listed = _child(self._root, section)
        entries = listed.value if listed is not None and isinstance(listed.value, list) else []
        names = [_text(item, "name") for item in entries]
        if name not in names:
            hint = did_you_mean(name, names) or f"known: {', '.join(names[:16]) or 'none'}"
            raise _error(place or self._root, f"unknown {key} {show(name)} ({hint})")
        entry = _child(entries[names.index(name)], key)
        if entry is None or not isinstance(entry.value, dict):
            raise _error(entries[names.index(name)], f"the {key} {show(name)} is empty")
        return entry

    def _server(self, cluster: Node) -> str:
        if _text(cluster, "proxy-url"):
            raise _error(_child(cluster, "proxy-url") or cluster, "proxy-url is not supported")
        server = _needed(cluster, "server").rstrip("/")
        try:
            parts = urlsplit(server)
            usable = parts.scheme in {"http", "https"} and parts.hostname and parts.username is None
            _ = parts.port
        except ValueError:
            usable = False
        if not usable:
            raise _error(_child(cluster, "server") or cluster, f"{show(server)} is not the URL of an API server")
        return server

    def _credentials(self, user: Node, server: str) -> ClusterCredentials:
        if (provider := _child(user, "auth-provider")) is not None:
            raise _error(provider, "auth-provider has been removed from Kubernetes; use exec")
        certificate, key = self._pem(user, "client-certificate"), self._pem(user, "client-key")
        if (certificate is None) != (key is None):
            raise _error(user, "a client certificate needs its key, and the key needs its certificate")
        pair = (certificate, key) if certificate is not None and key is not None else None
        if (plugin := _child(user, "exec")) is not None:
            return ExecPlugin(self._command(plugin, server))
        if (named := _child(user, "tokenFile")) is not None and named.value:
            return TokenFile(self._readable(named), pair, lambda: self._readable(named))
        return FixedAccess(CallerIdentity(self._authorization(user), pair))

    def _authorization(self, user: Node) -> str:
        if (token := _child(user, "token")) is not None:
            return bearer(_text(user, "token"), f"{token.position}: this")
        name, password = _text(user, "username"), _text(user, "password")
        return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode() if name else ""

    def _command(self, plugin: Node, server: str) -> ExecCommand:
        version = _needed(plugin, "apiVersion")
        if version not in API_VERSIONS:
            raise _error(
                _child(plugin, "apiVersion") or plugin, f"{show(version)} is not one of {', '.join(API_VERSIONS)}"
            )
        if problem := _others_may_write(self._file):
            raise _error(plugin, f"a kubeconfig that runs a program must not be {problem}")
        program = _needed(plugin, "command")
        if "/" in program:
            program = str(self._path(program))
        variables = [(_needed(item, "name"), _text(item, "value")) for item in _items(plugin, "env")]
        arguments = [str(item.value) for item in _items(plugin, "args")]
        info = json.dumps({"server": server}) if _is_true(plugin, "provideClusterInfo") else ""
        return ExecCommand((program, *arguments), tuple(variables), version, info, str(plugin.position))

    def _pem(self, node: Node, key: str) -> str | None:
        """Return the PEM text from `key` or `key-data`; None if neither is set."""
        if (encoded := _child(node, f"{key}-data")) is not None and encoded.value:
            try:
                return base64.b64decode(str(encoded.value), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                raise _error(encoded, f"{key}-data is not base64-encoded PEM") from None
        named = _child(node, key)
        if named is None or not named.value:
            return None
        try:
            return read_regular(self._readable(named), _MAX_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise _error(named, f"{show(str(named.value))} cannot be read: {reason_of(error)}") from None

    def _readable(self, named: Node) -> Path:
        """Return a file's path if the kubeconfig may refer to the file."""
        file = self._path(str(named.value))
        if self._of_operator:
            return file
        if is_below(file, self._control_files):
            problem = "belongs to the control plane, and a fleet's kubeconfig must not read it"
            raise _error(named, f"{show(str(named.value))} {problem}")
        if not (is_below(file, (str(self._file.parent),)) or is_allowed(file)):
            problem = "is outside the directories that this kubeconfig may read"
            raise _error(named, f"{show(str(named.value))} {problem} (add its directory to {VARIABLE})")
        return file

    def _path(self, written: str) -> Path:
        return self._file.parent / Path(written).expanduser()


def _child(node: Node, key: str) -> Node | None:
    return node.value.get(key) if isinstance(node.value, dict) else None


def _items(node: Node, key: str) -> list[Node]:
    listed = _child(node, key)
    return listed.value if listed is not None and isinstance(listed.value, list) else []


def _text(node: Node, key: str) -> str:
    child = _child(node, key)
    if child is None or child.value is None:
        return ""
    if isinstance(child.value, dict | list):
        raise _error(child, f"{key} is not a string")
    return str(child.value)


def _needed(node: Node, key: str) -> str:
    text = _text(node, key)
    if not text:
        raise _error(node, f"{key} is missing")
    return text


def _is_true(node: Node, key: str) -> bool:
    child = _child(node, key)
    return child is not None and child.value is True


def _error(node: Node, problem: str) -> ClusterError:
    return ClusterError(f"{node.position}: {problem}")


def _others_may_write(file: Path) -> str:
    """Return the reason why other users could modify the file, or an empty string."""
    status = file.stat()
    if status.st_uid not in {0, os.geteuid()}:
        return "owned by another user"
    return "writable by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""
