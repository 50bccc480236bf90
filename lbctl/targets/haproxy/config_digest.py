"""The digest with which a running HAProxy identifies its configuration.

The digest covers everything that needs a reload. It is part of the `description`, which `show info` returns. The driver
of the proxy can thus determine whether weights and servers are the only differences, even if other programs have loaded
or written configurations in the meantime.
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
"""Backend whose only server has the digest of a fragment as its name, because a fragment has no description."""
SERVER = f"server {_MARK} 127.0.0.1:1 disabled"
"""Line of that server without the digest."""
_SERVER = re.compile(rf"(?m)^    server ({_MARK}[0-9a-f]*) 127\.0\.0\.1:1 disabled$")
_CHANGEABLE = (
    "    server ",
    f"    {limits.REQUESTS_PREFIX}",
    f"    {limits.FIT_PREFIX}",
    f"    {pick.SLOT_RULE}",
)
"""The beginnings of lines that follow the replicas."""
_OWN_PORT = re.compile(r"    server (\S+) .* (port [0-9]+)")
"""Line of a server whose checks use another port than the others'. No command changes the port."""
_LENGTH = 16


def marked(text: str, others: Iterable[File]) -> str:
    """Return the text with the digest in its `BLANK` line, if it has one; `others` are further files to cover."""
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
    """Return the text with another digest in the description, or in the name of the fragment's server."""
    text = text.replace(f"    description {old}\n", f"    description {new}\n", 1)
    return text.replace(f"    server {old} 127.0.0.1:1 disabled\n", f"    server {new} 127.0.0.1:1 disabled\n", 1)


def covering(bundle: Bundle, files: str) -> Bundle:
    """Return the bundle with a digest that also covers `files`, the digest of further files that HAProxy reads.

    A renewed certificate is therefore a change that needs a reload. A configuration without a digest gets a comment.
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
    """Return the digest that a proxy with this configuration reports; empty if it has none."""
    start = f"    {BLANK}"
    server = _SERVER.search(bundle.main.text)
    if server is not None:
        return server[1]
    return next((row.split()[1] for row in bundle.main.text.splitlines() if row.startswith(start)), "")
