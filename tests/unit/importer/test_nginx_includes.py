"""Includes of nginx that cannot be read close the routes that they may protect."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.sources import nginx
from lbctl.importer.nginx.read import read
from tests.support.importer import imported_text

MAIN = """
{main}
events {{}}
http {{
    upstream u {{ server 10.0.0.1:80; }}
    {http}
    server {{
        listen 80;
        {server}
        location /a/ {{ {location} proxy_pass http://u; location /a/inner/ {{ proxy_pass http://u; }} }}
        location /b/ {{ proxy_pass http://u; }}
        location = /hello {{ return 200 hello; }}
        location = /no {{ return 403; }}
    }}
    server {{ listen 80; server_name other; location / {{ proxy_pass http://u; }} }}
}}
"""
ROUTES = {"a", "a-inner", "b", "hello", "other"}


def text_of(place: str = "", line: str = "") -> str:
    return MAIN.format(**(dict.fromkeys(("main", "http", "server", "location"), "") | ({place: line} if place else {})))


def closed(text: str, directory: Path) -> set[str]:
    result, _ = imported_text("nginx", text, directory)
    return {
        name for name, route in result.draft.fleet["routes"].items() if route.get("respond", {}).get("status") == 501
    }


@pytest.mark.parametrize(
    ("place", "line", "expected"),
    [
        ("location", "include /etc/gateway/require-key.conf;", {"a", "a-inner"}),
        ("location", "if ($http_x = 1) { include missing.conf; }", {"a", "a-inner"}),
        ("server", "include missing/auth.conf;", ROUTES - {"other"}),
        ("server", "include missing/*.conf;", ROUTES - {"other"}),
        ("http", "include /etc/gateway/deny.conf;", ROUTES),
        ("http", "include missing/*;", ROUTES),
        ("http", "include source.conf;", ROUTES),
        ("main", "include /usr/share/nginx/modules/*.conf;", set()),
    ],
)
def test_unread_include_closes_the_block_around_it(place: str, line: str, expected: set[str], tmp_path: Path) -> None:
    assert closed(text_of(place, line), tmp_path) == expected


@pytest.mark.parametrize(
    ("place", "file"),
    [
        ("http", "mime.types"),
        ("http", "/etc/nginx/mime.types"),
        ("server", "/etc/letsencrypt/options-ssl-nginx.conf"),
        ("server", "snippets/snakeoil.conf"),
        ("location", "proxy_params"),
        ("location", "/etc/nginx/fastcgi_params"),
    ],
)
def test_include_without_access_rules_closes_nothing(place: str, file: str, tmp_path: Path) -> None:
    assert closed(text_of(place, f"include {file};"), tmp_path) == set()


def test_empty_directory_of_includes_closes_nothing(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / ".hidden.conf").write_text("deny all;")
    assert closed(text_of("http", f"include conf.d/*.conf; include {tmp_path}/conf.d/*.conf;"), tmp_path) == set()


def test_absolute_pattern_below_the_main_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a.conf").write_text("server { listen 81; location / { proxy_pass http://u; } }")
    result, diagnostics = imported_text("nginx", text_of("http", f"include {tmp_path}/conf.d/*.conf;"), tmp_path)
    assert "port-81" in result.draft.fleet["listeners"]
    assert "LB983" not in {item.code for item in diagnostics}


def test_include_in_a_read_file_closes_the_block_around_both(tmp_path: Path) -> None:
    (tmp_path / "part.conf").write_text("include missing.conf;")
    assert closed(text_of("location", "include part.conf;"), tmp_path) == {"a", "a-inner"}


def test_file_of_conf_d_with_an_unread_include_is_closed(tmp_path: Path) -> None:
    text = "include /etc/gateway/deny.conf; server { listen 80; location / { proxy_pass http://10.0.0.1; } }"
    assert closed(text, tmp_path) == {"default"}


def test_unread_include_closes_overlapping_expressions(tmp_path: Path) -> None:
    text = (
        "server { listen 80; location ~ ^/v1/x { include missing.conf; proxy_pass http://10.0.0.1; } "
        "location ~ ^/v1/ { proxy_pass http://10.0.0.2; } }"
    )
    assert len(closed(text, tmp_path)) == 2


def test_fallback_behind_an_unread_include_is_left_out(tmp_path: Path) -> None:
    text = (
        "server { listen 80; location / { proxy_pass http://10.0.0.1; error_page 502 = @spare; } "
        "location @spare { include missing.conf; proxy_pass http://10.0.0.2; } }"
    )
    result, _ = imported_text("nginx", text, tmp_path)
    assert result.draft.fleet["routes"]["default"].get("fallback") is None
    assert "an include that was not read may protect the fallback" in result.text


def test_pools_of_an_unread_map_are_an_error(tmp_path: Path) -> None:
    text = (
        "map $http_x_tenant $to { default 10.0.0.1:80; acme 10.0.0.2:80; include tenants.map; }"
        "server { listen 80; location / { proxy_pass http://$to; } }"
    )
    _, diagnostics = imported_text("nginx", text, tmp_path)
    assert [item.position.line for item in diagnostics if item.code == "LB989" and item.position] == [1]


@pytest.mark.parametrize(
    ("place", "expected"), [("location", 1), ("server", 1), ("http", 2)], ids=["location", "server", "http"]
)
def test_comparison_closes_the_block_of_an_unread_include(place: str, expected: int, tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(text_of(place, "include missing.conf; include mime.types;"))
    places = StandIns(tmp_path, {"0.0.0.0:80": 20000}, {"10.0.0.1:80": 21000})
    result = nginx.rewrite(read(str(file), Diagnostics()), places)
    assert result.text.count("return 501 closed;") == expected
    assert [(item.name, item.reason) for item in result.removed if item.closes] == [("include", nginx.NOT_READ)]


def test_comparison_names_harmless_includes(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(text_of("server", "include mime.types;"))
    result = nginx.rewrite(read(str(file), Diagnostics()), StandIns(tmp_path, {"0.0.0.0:80": 20000}, {}))
    assert ("include mime.types", "files that were not read") in {(item.name, item.reason) for item in result.removed}
