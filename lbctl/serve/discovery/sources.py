"""The sources of discovered replicas, by the key under `discovery:`. A new source is a module and a line here."""

from __future__ import annotations

from lbctl.base.registry import Registry
from lbctl.serve.discovery.dns import DnsSource
from lbctl.serve.discovery.file import FileSource
from lbctl.serve.discovery.interface import SourceFactory

SOURCES: Registry[SourceFactory] = Registry({"dns": DnsSource, "file": FileSource})
