"""The values of Envoy's runtime that lbctl's configurations need, in one layer of every bootstrap that it writes.

It is a static layer: nothing but a restart changes it, and no file beside the bootstrap does.
"""

from __future__ import annotations

from collections.abc import Mapping

from envoy.config.bootstrap.v3 import bootstrap_pb2

_PROGRAM = "re2.max_program_size.error_level"
_PROGRAM_SIZE = 1_000_000
"""By itself Envoy refuses regular expressions of more than 100 instructions, and `[a-z]{1,63}` has 130. Here it is more
than RE2 lets any have in its 8 MiB (some 350,000), and so RE2's own bound holds; matching takes linear time."""
_CONNECTIONS = "envoy.resource_limits.listener.{}.connection_limit"


def add_limits(message: bootstrap_pb2.Bootstrap, connections: Mapping[str, int]) -> None:
    """`connections`: name of a listener → how many it takes at once."""
    layer = message.layered_runtime.layers.add(name="limits").static_layer
    layer[_PROGRAM] = _PROGRAM_SIZE
    for name, limit in connections.items():
        layer[_CONNECTIONS.format(name)] = limit
