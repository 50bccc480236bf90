"""From a compiled fleet to the view that a target writes: one proxy's part, what it cannot protect closed, files where
the proxy will find them. `render` and the control plane take the same way.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.compile.fleet import Compiled
from lbctl.ir.proxies import Proxy
from lbctl.ir.rewrite import with_files
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.assess import assess, close
from lbctl.targets.target import Bundle, Target


@dataclass(frozen=True, slots=True)
class Prepared:
    """`view` as the target writes it, but with the fleet's own file paths; `losses`: what the target cannot say."""

    target: Target
    view: View
    losses: tuple[Diagnostic, ...]

    def rooted(self, root: str) -> View:
        """With `root` before every relative path."""
        return with_files(self.view, lambda path, _kind: posixpath.join(root, path)) if root else self.view


def prepare(target: Target, compiled: Compiled, proxy: Proxy, snapshot: Snapshot) -> Prepared:
    """`snapshot`: of the compiled topology, with what the key files hold, and live state where there is some."""
    whole = view(snapshot, proxy)
    assessed = assess(target, proxy.version, whole, compiled.sources)
    return Prepared(target, close(whole, assessed), assessed.diagnostics)


def placed(bundle: Bundle, compiled: Compiled) -> list[Diagnostic]:
    """The bundle's own findings, at their places in the YAML."""
    return [compiled.sources.with_position(item) for item in bundle.diagnostics]
