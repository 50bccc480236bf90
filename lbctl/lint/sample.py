"""The small fleets of the pages: one listener, one route, one pool of two equal replicas, without any finding."""

from __future__ import annotations

import textwrap

TWO = """\
- {name: a, address: "10.0.0.1:8000", gpu: H100-SXM}
- {name: b, address: "10.0.0.2:8000", gpu: H100-SXM}
"""
LLM = """\
telemetry:
  sources:
    - {kind: vllm, url: "http://{host}:{port}/metrics"}
    - {kind: dcgm, url: "http://{host}:9400/metrics"}
"""
"""The telemetry of a pool of vLLM servers."""


def sample(
    pool: str = "",
    *,
    replicas: str = TWO,
    routes: str = "chat: {match: {path_prefix: /v1/chat}, pool: llama}\n",
    listener: str = 'gateway: {bind: "127.0.0.1:8080"}\n',
    pools: str = "",
    more: str = "",
) -> str:
    """Return a whole fleet.

    `pool`: lines of the pool `llama`; `pools`: further pools; `more`: further sections.
    """
    pool_lines = f"replicas:\n{_in(replicas, 1)}{pool}"
    return (
        f"version: 1\nlisteners:\n{_in(listener, 1)}routes:\n{_in(routes, 1)}"
        f"pools:\n  llama:\n{_in(pool_lines, 2)}{_in(pools, 1)}{more}"
    )


def _in(text: str, levels: int) -> str:
    return textwrap.indent(text, "  " * levels)
