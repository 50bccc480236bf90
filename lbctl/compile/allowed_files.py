"""Restricts which files a fleet may name, which is the security boundary between its author and this machine.

lbctl reads the files named in a fleet with its own privileges. It passes on the contents of some of them to rendered
files and to proxies, from which they reach servers named in the fleet. These files must be below the fleet's own
directory, or below a directory that the operator has allowed. Certificates, lists of replicas and public keys (JWKS)
can be located anywhere, because lbctl checks that their content is of the expected kind. A fleet must not name any file
that contains the control plane's state, tokens or keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lbctl.base import diagnostics as d
from lbctl.base.paths import exists, is_file, without_links
from lbctl.model.fleet import FleetSource
from lbctl.model.node import Node, descend

REFUSED = "LB514"
VARIABLE = "LBCTL_FILE_DIRS"
"""Environment variable that lists additional allowed directories, separated as in PATH."""
DIRECTORIES = (
    "/etc/lbctl",
    "/run/secrets",
    "/run/credentials",
    "/etc/ssl",
    "/etc/letsencrypt",
    "/etc/haproxy",
    "/etc/nginx",
    "/etc/envoy",
)
"""Directories that are allowed by default, in addition to the fleet's own directory."""
_OWN_IDENTITY = ("/run/secrets/kubernetes.io", "/run/secrets/eks.amazonaws.com", "/run/secrets/azure")
"""lbctl's own credentials in a cluster."""
_KUBE = "~/.kube"
"""Directory that contains this user's kubectl kubeconfig."""
_STATE = "/var/lib/lbctl"
_OWN_FILES: tuple[d.Path, ...] = (
    ("control", "state"),
    ("control", "api", "token_file"),
    ("control", "picker", "key_file"),
    ("control", "store", "key_file"),
    ("control", "store", "password", "file"),
)
"""Keys that name the control plane's own files."""


def allow(place: Path) -> None:
    """Allow a file or directory in this process and in its child processes."""
    os.environ[VARIABLE] = os.pathsep.join(filter(None, (os.environ.get(VARIABLE), str(place))))


def is_allowed(file: Path) -> bool:
    """Return whether a file, with its links resolved, is below a directory that the operator has allowed."""
    resolved = without_links(file)
    home = os.path.expanduser(_KUBE)  # noqa: PTH111 -- Path.expanduser() raises where there is no home
    named = (*DIRECTORIES, home, *filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
    return _is_below(resolved, named) and not _is_below(resolved, _OWN_IDENTITY)


def refusal(source: FleetSource, path: d.Path, node: Node) -> d.Diagnostic | None:
    """Return LB514 if the fleet must not name the file, or None otherwise.

    The `control` section belongs to the operator and may name any file.
    """
    if path[0] == "control":
        return None
    resolved = without_links(Path(source.roots[node.file]) / str(node.value))
    shown = d.show(str(node.value)) + ("" if str(resolved) == str(node.value) else f" ({resolved})")
    if _is_below(resolved, of_control_plane(source)):
        message = f"{shown} belongs to the control plane, and a fleet must not read it"
        return d.Diagnostic(REFUSED, message, node.position, path, "use a separate file for each purpose")
    if not _is_passed_on(path) or may_read(source, path, node, resolved) or _holds_nothing(resolved):
        return None
    message = f"{shown} is outside the directories from which a fleet may read such files"
    hint = f"move it below the fleet's directory or {DIRECTORIES[0]}, or add its directory to {VARIABLE}"
    return d.Diagnostic(REFUSED, message, node.position, path, hint)


def may_read(source: FleetSource, path: d.Path, node: Node, opened: Path) -> bool:
    """Return whether an opened file's content may be passed on.

    `path` and `node` are the place in the fleet that names the file.
    """
    if path[0] == "control":
        return True
    allowed = _is_below(opened, (source.roots[node.file],)) or is_allowed(opened)
    return allowed and not _is_below(opened, of_control_plane(source))


def _is_passed_on(path: d.Path) -> bool:
    """Return whether lbctl passes on the content of a file named at this place in the fleet."""
    return path[0] == "proxies" or path[-1] in {"file", "kubeconfig"}


def _holds_nothing(resolved: Path) -> bool:
    """Return whether this is a device, directory or socket, none of which lbctl reads."""
    return exists(resolved) and not is_file(resolved)


def is_below(file: Path, places: Iterable[str]) -> bool:
    """Return whether a file, with links resolved, is one of these files or below one of these directories."""
    return _is_below(without_links(file), places)


def of_control_plane(source: FleetSource) -> Iterator[str]:
    """Yield the control plane's files and directories, which the fleet must not name."""
    yield from source.withheld
    yield from (os.environ.get("LBCTL_STATE") or _STATE, _STATE, *_OWN_IDENTITY)
    for named in _OWN_FILES:
        node = descend(source.root, named)
        if node is not None and isinstance(node.value, str):
            yield str(Path(source.roots[node.file]) / node.value)


def _is_below(resolved: Path, places: Iterable[str]) -> bool:
    return any(resolved.is_relative_to(without_links(place)) for place in places)
