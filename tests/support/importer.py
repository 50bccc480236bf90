"""Imports configurations of proxies, and reads the samples with independent readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import crossplane
import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.run import Imported, run
from tests.support.paths import FIXTURES

SAMPLES = FIXTURES / "import"
_ENVOY = """
static_resources:
  listeners:
  - name: l
    address: {{socket_address: {{address: 0.0.0.0, port_value: 80}}}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: x
          route_config:
            virtual_hosts:
            - name: v
              domains: ["*"]
              routes:
              - match: {{path: /open}}
                route: {{cluster: c}}
                typed_per_filter_config: {{{open}}}
              - match: {{prefix: /}}
                route: {{cluster: c}}
                {route}
          http_filters:
          {filters}
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: c
    load_assignment:
      cluster_name: c
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 10.0.0.1, port_value: 80}}}}}}}}]
  - name: auth
    load_assignment:
      cluster_name: auth
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 9191}}}}}}}}]
"""


def envoy_text(*, route: str = "", filters: str = "", open_: str = "") -> str:
    """Return an Envoy configuration with a route for /open and one for all other paths, with these fields, and with
    these filters in front of the router."""
    return _ENVOY.format(route=route, filters=filters, open=open_)


def samples(kind: str) -> list[Path]:
    """Return the main files of the samples of a kind."""
    return sorted(item for item in (SAMPLES / kind).iterdir() if item.is_file())


def imported(kind: str, file: Path | str) -> tuple[Imported, Diagnostics]:
    """Import a file, which must be valid."""
    diagnostics = Diagnostics()
    result = run(kind, [str(file)], diagnostics)
    assert result is not None, "\n".join(map(str, diagnostics))
    return result, diagnostics


def imported_text(kind: str, text: str, directory: Path) -> tuple[Imported, Diagnostics]:
    """Write the text to the file `source.conf` in the directory, and import it. It must be valid."""
    file = directory / "source.conf"
    file.write_text(text)
    return imported(kind, file)


def fleet_from_text(kind: str, text: str, directory: Path) -> dict[str, Any]:
    """Return the fleet that an import of the text gives."""
    return imported_text(kind, text, directory)[0].draft.fleet


def directives(kind: str, file: Path) -> list[tuple[str, int]]:
    """Return the file and line of every directive, from an independent reader."""
    return list(_READERS[kind](file))


def _nginx(file: Path) -> Iterator[tuple[str, int]]:
    payload = crossplane.parse(str(file), check_ctx=False, check_args=False)
    for config in payload["config"]:
        if Path(config["file"]).is_relative_to(file.parent) and Path(config["file"]).exists():
            yield from _blocks(Path(config["file"]).name, config["parsed"])


def _blocks(name: str, parsed: list[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    for item in parsed:
        yield name, item["line"]
        yield from _blocks(name, item.get("block", []))


def _haproxy(file: Path) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if line.strip() and not line.strip().startswith("#"):
            yield file.name, number


def _envoy(file: Path) -> Iterator[tuple[str, int]]:
    def of(node: yaml.Node) -> Iterator[int]:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            yield key.start_mark.line + 1
            yield from of(value)
        for item in node.value if isinstance(node, yaml.SequenceNode) else ():
            yield item.start_mark.line + 1
            yield from of(item)

    yield from ((file.name, line) for line in of(yaml.compose(file.read_text(), Loader=yaml.SafeLoader)))


_READERS = {"nginx": _nginx, "haproxy": _haproxy, "envoy": _envoy}
