"""`lbctl` with the fourth kind of proxy. It registers the proxy with two lines, before anything else is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar
from unittest import mock

from lbctl import targets
from lbctl.base.registry import Registry
from lbctl.serve.drivers import registry

T = TypeVar("T")
KIND, PACKAGE = "toy", "tests.support.fourth_proxy"


def _with(kinds: Registry[T], value: T) -> Registry[T]:
    return Registry({**{name: kinds.get(name) for name in kinds.names}, KIND: value})


@contextmanager
def registered() -> Iterator[None]:
    """Keep the kind in both registries within the block, for modules that are imported there."""
    packages = _with(targets.PACKAGES, PACKAGE)
    drivers = _with(registry.DRIVERS, registry.DriverKind(f"{PACKAGE}.driver:ToyDriver", (("config",),)))
    with (
        mock.patch.multiple(
            targets, PACKAGES=packages, KINDS=packages.names, TARGETS=(*packages.names, *targets.MANIFESTS.names)
        ),
        mock.patch.object(registry, "DRIVERS", drivers),
    ):
        yield


if __name__ == "__main__":
    with registered():
        from lbctl.cli import run

        code = run(sys.argv[1:])
    sys.exit(code)
