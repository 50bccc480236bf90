from __future__ import annotations

import pytest

from lbctl.base.registry import Registry, UnknownName

PROXIES = Registry({"nginx": 1, "haproxy": 2, "envoy": 3})


def test_names_keep_their_order() -> None:
    assert PROXIES.names == ("nginx", "haproxy", "envoy")


def test_get_returns_the_value_of_a_name() -> None:
    assert [PROXIES.get(name) for name in PROXIES.names] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ngnix", "unknown name 'ngnix' (did you mean 'nginx'?)"),
        ("ENVOY", "unknown name 'ENVOY' (did you mean 'envoy'?)"),
        ("traefik", "unknown name 'traefik' (one of nginx, haproxy, envoy)"),
        ("", "unknown name '' (one of nginx, haproxy, envoy)"),
    ],
)
def test_an_unknown_name_suggests_the_nearest_name(name: str, message: str) -> None:
    with pytest.raises(UnknownName) as caught:
        PROXIES.get(name)
    assert str(caught.value) == message


def test_a_registry_copies_the_given_map() -> None:
    given = {"nginx": 1}
    registry = Registry(given)
    given["envoy"] = 2
    assert registry.names == ("nginx",)
