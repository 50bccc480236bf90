"""The digest that identifies a running HAProxy's configuration.

It covers everything that takes effect only after a reload. It is part of the `description` returned by `show info`. The
proxy's driver can thus determine whether only weights and servers differ, even if other programs have loaded or written
configurations in the meantime.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace

from lbctl.targets.haproxy import limits, pick, slots
from lbctl.targets.target import Bundle, File

_MARK = "lbctl-"
BLANK = f"description {_MARK}"
"""Line without the digest."""
SECTION = "lbctl_config"
"""Backend with a single server whose name is the digest of a fragment, because a fragment has no description."""
SERVER = f"server {_MARK} 127.0.0.1:1 disabled"
"""Line of that server, without the digest."""
_SERVER = re.compile(rf"(?m)^    server ({_MARK}[0-9a-f]*) 127\.0\.0\.1:1 disabled$")
_CHANGEABLE = (
    "    server ",
    f"    {limits.REQUESTS_PREFIX}",
    f"    {limits.FIT_PREFIX}",
    f"    {pick.SLOT_RULE}",
)
"""Prefixes of lines that change with the replicas."""
_OWN_PORT = re.compile(r"    server (\S+) .* (port [0-9]+)")
"""Line of a server that has its own check port. No Runtime API command can change this port."""
_LENGTH = 16


def marked(text: str, others: Iterable[File]) -> str:
    """Return the text with the digest in its `BLANK` line, if it has one.

    `others` are further files that the digest covers.
    """
    if f"    {BLANK}\n" not in text and f"    {SERVER}\n" not in text:
        return text
    digest = hashlib.sha256()
    for row in text.splitlines():
        if not row.startswith(_CHANGEABLE):
            digest.update(f"{row}\n".encode())
        elif own_port := _OWN_PORT.match(row):
            digest.update(f"{own_port[1]} {own_port[2]}\n".encode())
    for file in others:
        if file.name == slots.MAP:  # it depends on the number of replicas
            continue
        digest.update(f"\x00{file.name}\x00{file.text}".encode())
    return _replaced(text, _MARK, f"{_MARK}{digest.hexdigest()[:_LENGTH]}")


def _replaced(text: str, old: str, new: str) -> str:
    """Return the text with a different digest in the description or in the name of the fragment's server."""
    text = text.replace(f"    description {old}\n", f"    description {new}\n", 1)
    return text.replace(f"    server {old} 127.0.0.1:1 disabled\n", f"    server {new} 127.0.0.1:1 disabled\n", 1)


def covering(bundle: Bundle, files: str) -> Bundle:
    """Return the bundle with a digest that also covers `files`, itself a digest of further files that HAProxy reads.

    A renewed certificate is therefore treated as a change that requires a reload. In a configuration without a digest,
    a comment is added instead.
    """
    description, text = of(bundle), bundle.main.text
    if not files:
        return bundle
    if description:
        both = hashlib.sha256(f"{description}\x00{files}".encode()).hexdigest()
        text = _replaced(text, description, f"{_MARK}{both[:_LENGTH]}")
    else:
        text += f"# files: {files[:_LENGTH]}\n"
    return replace(bundle, files=(replace(bundle.main, text=text), *bundle.files[1:]))


def of(bundle: Bundle) -> str:
    """Return the digest reported by a proxy with this configuration; empty if it has none."""
    start = f"    {BLANK}"
    server = _SERVER.search(bundle.main.text)
    if server is not None:
        return server[1]
    return next((row.split()[1] for row in bundle.main.text.splitlines() if row.startswith(start)), "")
