from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.base import quantities as q


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (q.parse_duration, "250ms", 250), (q.parse_duration, "5s", 5_000), (q.parse_duration, "1h", 3_600_000),
        (q.parse_duration, "1.5s", 1_500), (q.parse_duration, "1.005s", 1_005), (q.parse_duration, "2.3h", 8_280_000),
        (q.parse_duration, "720h", 2_592_000_000),
        (q.parse_size, "1B", 1), (q.parse_size, "64KiB", 65_536), (q.parse_size, "0.5GiB", 1 << 29),
        (q.parse_percent, "12.5%", 12.5), (q.parse_percent, "0%", 0), (q.parse_temperature, "90C", 90),
        (q.parse_rate, "50/s", q.Rate(50, 1_000)), (q.parse_rate, "10000/h", q.Rate(10_000, 3_600_000)),
        (q.parse_token_rate, "500/s", q.TokenRate(500, 1_000)),
        (q.parse_token_rate, "200k/m", q.TokenRate(200_000, 60_000)),
        (q.parse_token_rate, "5M/h", q.TokenRate(5_000_000, 3_600_000)),
        (q.parse_version, "1.22", (1, 22, 0)), (q.parse_version, "1.25.1", (1, 25, 1)),
        (q.parse_address, "10.0.0.1:80", q.Endpoint("10.0.0.1", 80, ip=True)),
        (q.parse_address, "[2001:DB8:0::1]:80", q.Endpoint("2001:db8::1", 80, ip=True)),
        (q.parse_address, "Replica_1.ml.svc:8000", q.Endpoint("replica_1.ml.svc", 8000)),
        (q.parse_address, "unix:/run/a.sock", q.Endpoint(path="/run/a.sock")),
    ],
)  # fmt: skip
def test_a_quantity_is_converted_to_its_internal_unit(
    parse: Callable[[object], object], text: str, value: object
) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((q.parse_duration, bad) for bad in (5, 5.0, True, None, [], "5", "5 s", "5S", "5min", "-5s", "0s", "0.5ms",
                                              "721h", "٣s", "5s\n", "1e3s", "", "s", "1..5s", "9" * 16 + "s")),
        *((q.parse_size, bad) for bad in (10, "10", "10MB", "10mib", "0B", "0.3B", "2000000GiB")),
        *((q.parse_percent, bad) for bad in (5, 0.5, "5", "5 %", "-5%", "%")),
        *((q.parse_temperature, bad) for bad in (90, "90", "90F", "90°C")),
        *((q.parse_rate, bad) for bad in (50, "50", "50/d", "0/s", "1.5/s", "50 /s", "50/S", "50rps")),
        *((q.parse_token_rate, bad) for bad in (200, "200", "200k", "0k/m", "1.5k/m", "200K/m", "200k /m", "200kk/m",
                                                "200k/d", "2G/h", "k/m", "9" * 10 + "/s", "200k/m/m")),
        *((q.parse_version, bad) for bad in (1, 1.22, "1", "1.x", "v1.22", "1.2.3.4", "1.22\n")),
    ],
)  # fmt: skip
def test_a_bad_quantity_is_an_error_with_a_hint(parse: Callable[[object], object], text: object) -> None:
    with pytest.raises(q.QuantityError) as error:
        parse(text)
    assert error.value.hint


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1", "host", ":80", "host:", "host:0", "host:65536", "host:080000", "host:8o", "host:٣", "::1:80", "[::1]",
     "[::1%eth0]:80", "[::1%a; return 200 x]:80", "256.0.0.1:80", "127.1:80", "0x7f.1:80", "1.2.3.0x4:80",
     "2130706433:80", "a..b:80", "-a:80", "a b:80", "a;b:80", "a\n:80", "é:80", "unix:relative",
     "unix:/run/../x", "unix:/a b", "unix:/",
     "unix:/" + "a" * 104, "a" * 64 + ":80", "http://a:80", "u@a:80", 8080, None],
)  # fmt: skip
def test_a_bad_address_is_an_error(text: object) -> None:
    with pytest.raises(q.QuantityError):
        q.parse_address(text)


@pytest.mark.parametrize("text", ["10.0.0.1", "replica"])
def test_an_address_without_a_port_is_reported_as_such(text: str) -> None:
    with pytest.raises(q.QuantityError, match="without a port"):
        q.parse_address(text)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("unix:~/h.sock", "without an absolute path", "begins with /"),
        ("unix:h.sock", "without an absolute path", "begins with /"),
        ("unix:/run/../h.sock", "contains ..", "without it"),
        ("unix:/run/~h.sock", "not the path of a unix socket", "at most 104 characters"),
    ],
)
def test_a_bad_socket_path_is_an_error_with_a_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(q.QuantityError, match=message) as error:
        q.parse_address(text)
    assert hint in error.value.hint


@given(st.integers(1, 30 * 24 * 3_600_000))
def test_a_printed_duration_reads_back_equal(millis: int) -> None:
    assert q.parse_duration(str(q.Duration(millis))) == millis


@given(st.integers(1, 1 << 40))
def test_a_printed_size_reads_back_equal(size: int) -> None:
    assert q.parse_size(str(q.Size(size))) == size


@given(st.integers(1, 999_999_999), st.sampled_from(("", "k", "M")), st.sampled_from("smh"))
def test_a_printed_token_rate_reads_back_equal(number: int, scale: str, period: str) -> None:
    rate = q.parse_token_rate(f"{number}{scale}/{period}")
    assert q.parse_token_rate(str(rate)) == rate


@given(st.text())
def test_any_text_is_read_or_rejected(text: str) -> None:
    for parse in (
        q.parse_duration, q.parse_size, q.parse_percent, q.parse_rate, q.parse_token_rate, q.parse_version,
        q.parse_address,
    ):  # fmt: skip
        message = ""
        try:
            parse(text)
        except q.QuantityError as error:
            message = str(error)
        assert message.isprintable()
