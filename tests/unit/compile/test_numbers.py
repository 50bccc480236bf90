"""The topology contains plain numbers: a quantity that prints as `5m` would appear like that in a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.fleet import compile_fleet
from lbctl.model.fleet import read
from lbctl.targets.load import proxy_kinds
from tests.support.paths import FIXTURES

FLEET = FIXTURES / "fleet.yaml"


def test_every_number_of_the_topology_is_plain() -> None:
    diagnostics = Diagnostics()
    source = read([str(FLEET)], diagnostics)
    assert source is not None
    compiled = compile_fleet(source, proxy_kinds(), diagnostics)
    assert compiled is not None
    odd = [(path, value) for path, value in _leaves(compiled.topology, "topology") if _is_odd(value)]
    assert odd == []


def _is_odd(value: object) -> bool:
    return isinstance(value, int | float | str) and type(value) not in {int, float, bool, str}


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
