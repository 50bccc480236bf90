"""The runtime values that every bootstrap written by lbctl contains, in one layer.

It is a static layer: only a restart changes it, and no file beside the bootstrap does.
"""

from __future__ import annotations

from collections.abc import Mapping

from envoy.config.bootstrap.v3 import bootstrap_pb2

_PROGRAM = "re2.max_program_size.error_level"
_PROGRAM_SIZE = 1_000_000
"""By default Envoy rejects regular expressions of more than 100 instructions, and `[a-z]{1,63}` has 130. This is more
than RE2 allows in its 8 MiB (some 350,000), so RE2's own bound applies. Matching takes linear time."""
_CONNECTIONS = "envoy.resource_limits.listener.{}.connection_limit"


def add_limits(message: bootstrap_pb2.Bootstrap, connections: Mapping[str, int]) -> None:
    """Add the layer to a bootstrap.

    `connections` maps the name of a listener to its maximum of connections.
    """
    layer = message.layered_runtime.layers.add(name="limits").static_layer
    layer[_PROGRAM] = _PROGRAM_SIZE
    for name, limit in connections.items():
        layer[_CONNECTIONS.format(name)] = limit
