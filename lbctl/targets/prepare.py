"""Prepares the view of a compiled fleet that a target renders.

The view is one proxy's part of the fleet, in which routes that the proxy cannot protect are closed. `render` and the
control plane both prepare their views here.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.compile.fleet import Compiled
from lbctl.ir.file_paths import with_files
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.assess import assess, capability_at, close, without_fallbacks
from lbctl.targets.key_hashes import HashOnly, hash_only
from lbctl.targets.target import Bundle, Target, Unsupported


@dataclass(frozen=True, slots=True)
class Prepared:
    """A view that a target can render, and the features of the fleet that it cannot render."""

    target: Target
    view: View
    losses: tuple[Diagnostic, ...]
    """Warnings about features that the target does not support."""

    def rooted(self, root: str) -> View:
        """Return the view with every relative file path prefixed with `root`."""
        return with_files(self.view, lambda path, _kind: posixpath.join(root, path)) if root else self.view


def prepare(target: Target, compiled: Compiled, proxy: Proxy, snapshot: Snapshot) -> Prepared:
    """Return the view of `proxy` for `target`.

    `snapshot` contains the compiled topology, the contents of the key files and the live state, if any.
    """
    whole = view(snapshot, proxy)
    if isinstance(capability_at(target.capabilities["route.fallback"], proxy.version), Unsupported):
        whole = without_fallbacks(whole)  # a pool without requests closes no route
    assessment = assess(target, proxy.version, whole, compiled.sources)
    return Prepared(target, close(whole, assessment), assessment.diagnostics)


def refused_keys(target: Target, compiled: Compiled, proxy: Proxy, snapshot: Snapshot) -> tuple[HashOnly, ...]:
    """Return the API keys, by route, that the proxy rejects because the key file contains only their hashes."""
    if target.compares_hashes or all(key.key for keys in snapshot.secrets.api_keys.values() for key in keys):
        return ()
    return tuple(hash_only(prepare(target, compiled, proxy, snapshot).view))


def placed(bundle: Bundle, compiled: Compiled) -> list[Diagnostic]:
    """Return the bundle's own diagnostics with their positions in the YAML."""
    return [compiled.sources.with_position(item) for item in bundle.diagnostics]
