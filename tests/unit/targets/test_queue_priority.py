"""Warnings about queue priorities, which nginx and Envoy support only in pools with `queue`."""

from __future__ import annotations

import pytest

from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import target
from tests.support.fleet import compiled

FLEET = """\
version: 1
listeners: {front: {bind: "127.0.0.1:80"}}
routes:
  high: {match: {path: /high}, pool: queued, queue_priority: high}
  low: {match: {path: /low}, split: {queued: 1, plain: 1}, queue_priority: low}
  normal: {match: {path: /normal}, pool: plain, queue_priority: normal}
  static: {match: {path: /static}, respond: {status: 404}, queue_priority: high}
pools:
  queued: {replicas: [{address: "10.0.0.1:80"}], balance: {algorithm: pick}, queue: {max_wait: 5s}}
  plain: {replicas: [{address: "10.0.0.2:80"}]}
"""


def warnings(kind: str) -> list[str]:
    """Return the path and message of each warning about priorities."""
    chosen = target(kind)
    rendered = view(Snapshot(compiled(FLEET).topology), Proxy("edge", kind, chosen.versions[0]))
    diagnostics = [item for item in chosen.diagnostics(rendered) if item.code == "LB433"]
    return [f"{'.'.join(map(str, item.path))}: {item.message}" for item in diagnostics]


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_a_priority_without_queue_is_a_warning(kind: str) -> None:
    title = target(kind).title
    message = f"{title} supports priorities only in pools with `queue`: the priority has no effect in pool plain"
    assert warnings(kind) == [f"routes.low.queue_priority: {message}"]


def test_haproxy_supports_priorities_in_every_pool() -> None:
    assert warnings("haproxy") == []
