"""Checks that the files named in a fleet exist, and that none of them is outside the fleet's directory.

A CI pipeline has neither the certificates nor the keys used in production, so a missing file causes only a warning
unless the caller requires the files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from lbctl.base import diagnostics as d
from lbctl.base.errors import reason_of
from lbctl.base.paths import is_file, without_links
from lbctl.base.system_ca import WORD, system_ca
from lbctl.compile.allowed_files import refusal
from lbctl.model.fleet import FleetSource
from lbctl.model.node import Node

_FILE_KEYS = frozenset(
    {"certificate", "key", "client_ca", "client_crl", "ca", "file", "jwks_file", "path", "token_file", "kubeconfig"}
)
"""Keys that may contain a path. `_is_file` uses their position to decide."""
_SECTIONS = frozenset({"listeners", "routes", "pools"})
_HOLDERS = frozenset({"tls", "auth", "discovery", "upstream", "credentials"})
"""Keys in a listener, a route or a pool that contain paths."""


def check_files(source: FleetSource, required: bool, diagnostics: d.Diagnostics) -> None:
    """Report missing and misplaced files.

    Reports LB110 for a file that does not exist (an error if `required`), LB502 and LB514 for a file that the fleet
    must not name, and LB118 for two files with the same name. A missing key file is reported by `secrets`.
    """
    file_by_name: dict[str, Path] = {}
    in_cluster = replaced_by_secrets(source)
    for path, node in named_files(source.root):
        if path in in_cluster:
            continue
        diagnostics.extend(_findings(source, path, node, required))
        written, file = str(node.value), without_links(file_of(source, node))
        if path[-1] != "path" and file_by_name.setdefault(written, file) != file:
            message = f"{d.show(written)} is also the path of another file, {d.show(str(file_by_name[written]))}"
            hint = "use different names, because a proxy keeps both files in one directory"
            diagnostics.add(d.Diagnostic("LB118", message, node.position, path, hint))


def replaced_by_secrets(source: FleetSource) -> frozenset[d.Path]:
    """Return the paths of key pairs replaced by Secrets in a cluster because only Kubernetes gateways use them.

    A pool's key pair is included only if the fleet has no other proxies.
    """
    carriers: dict[str, set[bool]] = {}
    for proxy in source.fleet.proxies.values():
        for name in proxy.listeners or source.fleet.listeners:
            carriers.setdefault(name, set()).add(proxy.kubernetes is not None)
    listeners = {("listeners", name) for name, kinds in carriers.items() if kinds == {True}}
    proxies = source.fleet.proxies.values()
    pools = source.fleet.pools if proxies and all(proxy.kubernetes is not None for proxy in proxies) else ()
    owners = {*listeners, *(("pools", name) for name in pools)}
    return frozenset(
        path for path, _ in named_files(source.root) if path[-1] in ("certificate", "key") and path[:2] in owners
    )


def files_on_disk(source: FleetSource) -> dict[str, Path]:
    """Map each path, as written in the fleet, to the file on this machine, for all files that exist."""
    named = {str(node.value): file_of(source, node) for _, node in named_files(source.root)}
    return {written: file for written, file in named.items() if is_file(file)}


def file_of(source: FleetSource, node: Node) -> Path:
    """Resolve a path against the PATH directory of the YAML file that names it."""
    return Path(source.roots[node.file]) / str(node.value)


def read_regular(place: Path, most: int, accept: Callable[[Path], bool] | None = None) -> bytes:
    """Read a regular file that is at most `most` bytes long.

    Raises OSError for anything else, and if `accept` returns False for the opened file's path with links resolved. This
    function never waits for a pipe or reads a device, even if the path has just been replaced.
    """
    handle = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(place))
        if accept is not None and not accept(_opened(handle, place)):
            raise OSError(errno.EACCES, "it was replaced while it was being read", str(place))
        data = opened.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB", str(place))
    return data


def _opened(handle: int, place: Path) -> Path:
    """Return an opened file's path, which differs from `place` if the file has been moved."""
    try:
        return Path(f"/proc/self/fd/{handle}").readlink()
    except OSError:  # a system without /proc
        return without_links(place)


def _findings(source: FleetSource, path: d.Path, node: Node, required: bool) -> Iterator[d.Diagnostic]:
    file, written = file_of(source, node), str(node.value)
    refused = refusal(source, path, node)
    if refused is not None:
        yield refused
        return
    fault = _fault(file, written)
    if fault:
        if path[0] == "routes" or path[2:3] in {("upstream",), ("credentials",)}:
            return
        severity: d.Severity = "error" if required else "warning"
        yield d.Diagnostic("LB110", fault, node.position, path, "", severity)
        return
    if leads_out(source, node):
        hint = "keep the file below the fleet's directory, or use its absolute path"
        yield d.Diagnostic("LB502", f"{d.show(written)} points outside its directory", node.position, path, hint)


def _fault(file: Path, written: str) -> str:
    """Return the reason why this is not a usable file, or "" if it is. Files without read permission are accepted."""
    try:
        return "" if stat.S_ISREG(file.stat().st_mode) else f"{d.show(written)} is not a regular file"
    except (FileNotFoundError, NotADirectoryError):
        return f"the file {d.show(written)} does not exist"
    except OSError as error:
        return f"{d.show(written)} cannot be read: {reason_of(error).lower()}"


def leads_out(source: FleetSource, node: Node) -> bool:
    """Return whether a link in a relative path leads outside the fleet's directory."""
    root = without_links(Path(source.roots[node.file]))
    return not str(node.value).startswith("/") and not without_links(file_of(source, node)).is_relative_to(root)


def named_files(root: Node, path: d.Path = ()) -> Iterator[tuple[d.Path, Node]]:
    """Yield every path of a file in the fleet, except the control plane's own files."""
    if isinstance(root.value, dict):
        for key, node in root.value.items():
            here = (*path, key)
            if (not path and key not in _SECTIONS) or (len(path) == 2 and key not in _HOLDERS):
                continue
            if len(path) == 1 and isinstance(node.value, dict) and _HOLDERS.isdisjoint(node.value):
                continue  # most objects in a large fleet do not name a file
            if isinstance(node.value, str) and key in _FILE_KEYS and _is_file(here):
                yield here, _resolved(here, node)
            elif isinstance(node.value, dict | list):
                yield from named_files(node, here)
    elif isinstance(root.value, list):
        for index, node in enumerate(root.value):
            yield from named_files(node, (*path, index))


def _resolved(path: d.Path, node: Node) -> Node:
    """Return the node with the actual path if the value is a pool's `ca: system`."""
    if path[0] != "pools" or path[-1] != "ca" or node.value != WORD:
        return node
    return Node(system_ca(), node.file, node.line, node.column, node.key_line, node.key_column)


def _is_file(path: d.Path) -> bool:
    keys = [step for step in path if isinstance(step, str)]
    section, key = keys[0], keys[-1]
    if key == "kubeconfig":
        return section == "pools" and keys[-2:-1] == ["kubernetes"]
    if key == "path":
        return section == "pools" and keys[-2:-1] == ["file"]
    if section == "listeners":
        return "tls" in keys[2:3]
    if section == "pools":
        header = keys[2:4] == ["upstream", "headers"] and keys[5:] == ["file"]
        return keys[2:3] == ["tls"] or keys[2:] == ["credentials", "file"] or header
    return keys[2:3] == ["auth"] and key in {"file", "jwks_file"}
