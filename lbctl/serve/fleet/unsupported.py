"""Finds fleet features that its proxies cannot express.

Features that the control plane provides instead of the proxy are not reported. `done_by_control_plane_for` returns
these features, also for use by commands that render a file for such a proxy.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import key_hashes, target
from lbctl.targets.assess import assess
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import refused_keys
from lbctl.targets.target import SERVED


def unsupported_features(loaded: Loaded, snapshot: Snapshot, proxies: Iterable[Proxy]) -> tuple[Diagnostic, ...]:
    """Return a warning for each feature that at least one of the proxies cannot express, without duplicates.

    The warnings include each route that returns 503 because the proxy cannot protect it, and API keys that a proxy
    rejects.
    """
    warnings: dict[Diagnostic, None] = {}
    for proxy in proxies:
        provided = done_by_control_plane_for(proxy.kind)
        assessment = assess(target(proxy.kind), proxy.version, view(snapshot, proxy), loaded.compiled.sources)
        warnings |= dict.fromkeys(item for item in assessment.diagnostics if item.code not in provided)
        for keys in refused_keys(target(proxy.kind), loaded.compiled, proxy, snapshot):
            finding = key_hashes.warning(target(proxy.kind).title, keys)
            warnings[loaded.compiled.sources.with_position(finding)] = None
    return tuple(warnings)


def done_by_control_plane_for(kind: str) -> dict[str, str]:
    """Map the code of each feature that the control plane provides for this kind of proxy to the feature's title."""
    provided = SERVED.keys() | target(kind).done_by_control_plane
    return {item.code: item.title for item in FEATURES if item.id in provided}
