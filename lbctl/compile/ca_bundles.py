"""Loads the CA bundles named in a fleet, for proxies whose rendered objects contain them.

Only certificates are kept, and a file that also contains a private key is never passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from lbctl.base.system_ca import WORD
from lbctl.compile.allowed_files import refusal
from lbctl.compile.files import file_of, read_regular
from lbctl.model.fleet import FleetSource
from lbctl.model.node import Node, descend

MAX_BYTES = 512 << 10
"""Maximum size of a bundle, in bytes. A ConfigMap is limited to 1 MiB."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\r?\n[A-Za-z0-9+/=\r\n]+-----END CERTIFICATE-----", re.ASCII)


def ca_bundles(source: FleetSource) -> dict[str, str]:
    """Map each path of a CA bundle, as written in the fleet, to its certificates in PEM.

    Files without certificates and files that cannot be read are omitted, because `check_files` reports them. Only
    fleets with Kubernetes objects need bundles. For all other fleets, no files are read.
    """
    if all(proxy.kubernetes is None for proxy in source.fleet.proxies.values()):
        return {}
    contents: dict[str, str] = {}
    for path, node in _named(source):
        with suppress(OSError, UnicodeDecodeError):
            if refusal(source, path, node) is None:
                text = read_regular(file_of(source, node), MAX_BYTES).decode("ascii")
                certificates = _CERTIFICATE.findall(text)
                if certificates:
                    contents[str(node.value)] = "".join(f"{item}\n" for item in certificates).replace("\r", "")
    return contents


def _named(source: FleetSource) -> Iterator[tuple[tuple[str, ...], Node]]:
    paths = [
        *(("listeners", name, "tls", "client_ca") for name in source.fleet.listeners),
        *(("pools", name, "tls", "ca") for name in source.fleet.pools),
    ]
    for path in paths:
        node = descend(source.root, path)
        if node is not None and isinstance(node.value, str) and node.value != WORD:
            yield path, node
