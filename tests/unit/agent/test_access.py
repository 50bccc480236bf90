"""Clients that may connect to the agent."""

from __future__ import annotations

import pytest

from lbctl.agent.access import ClientNetworks, check_address, has_token, refusal
from lbctl.ir.address import Address
from tests.support.agent import settings

AFAR = Address("10.0.0.1", 9500)
TLS = {"tls_cert": "a.crt", "tls_key": "a.key"}


@pytest.mark.parametrize(
    ("client", "admitted"),
    [
        ("10.0.0.9", True),
        ("::ffff:10.0.0.9", True),
        ("10.0.1.9", False),
        ("2001:db8::1", True),
        ("2001:db8:1::1", False),
        ("127.0.0.1", True),
        ("::1", True),
    ],
)
def test_clients_in_the_networks_and_on_loopback_are_admitted(client: str, admitted: bool) -> None:
    networks = ClientNetworks.parse(("10.0.0.0/24", "2001:db8::/48"))
    assert networks.admit(client) == admitted


def test_every_client_is_admitted_without_networks() -> None:
    assert ClientNetworks.parse(()).admit("10.0.1.9")


@pytest.mark.parametrize("text", ["10.0.0.1/24", "10.0.0.0/40", "gpu-1", ""])
def test_invalid_networks(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        ClientNetworks.parse((text,))


def test_address_beyond_loopback_needs_networks_or_tls_and_token() -> None:
    assert refusal(settings(bind=AFAR)).startswith("any client could connect to 10.0.0.1:9500 (set --allow")
    assert refusal(settings(bind=AFAR, **TLS))
    assert refusal(settings(bind=AFAR, token_file="token"))
    assert refusal(settings(bind=AFAR, **TLS, token_file="token")) == ""
    assert refusal(settings(bind=AFAR, allow=("10.0.0.0/24",))) == ""
    assert refusal(settings(bind=Address("127.0.0.1", 9500))) == ""


@pytest.mark.parametrize(
    ("host", "allow", "checks"),
    [
        ("127.0.0.1", (), "127.0.0.1:9501"),
        ("10.0.0.1", ("10.0.0.0/24",), "10.0.0.1:9501"),
        ("10.0.0.1", (), "127.0.0.1:9501"),
        ("2001:db8::1", (), "[::1]:9501"),
    ],
)
def test_agent_checks_stay_on_loopback_without_networks(host: str, allow: tuple[str, ...], checks: str) -> None:
    assert str(check_address(Address(host, 9500), allow)) == checks


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("Bearer first", True),
        ("bearer second", True),
        ("Bearer third", False),
        ("Bearer # comment", False),
        ("Bearer ", False),
        ("Basic first", False),
        ("first", False),
        ("", False),
    ],
)
def test_token_is_a_line_of_the_file(header: str, accepted: bool) -> None:
    assert has_token(header, b"# comment\nfirst\n\nsecond\n") == accepted


def test_empty_token_file_accepts_nothing() -> None:
    assert not has_token("Bearer ", b"\n")
