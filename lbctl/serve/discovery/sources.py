"""The replica sources, by their key under `discovery:`.

To add a source, add a module in this package and one line here.
"""

from __future__ import annotations

from lbctl.base.registry import Registry
from lbctl.serve.discovery.dns import DnsSource
from lbctl.serve.discovery.file import FileSource
from lbctl.serve.discovery.interface import SourceFactory
from lbctl.serve.discovery.kubernetes import KubernetesSource

SOURCES: Registry[SourceFactory] = Registry({"dns": DnsSource, "file": FileSource, "kubernetes": KubernetesSource})
