"""Directives without a key of the fleet are written to files of own lines, or become comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run as command
from tests.support.importer import envoy_text

NGINX = (
    "gzip_types text/plain; server { listen 80; ssl_ciphers HIGH; "
    "location / { proxy_cookie_path / /x; proxy_pass http://10.0.0.1:80; } "
    "location /none { limit_rate_after 1k; return 204; } }"
)
HAPROXY = (
    "global\n nbthread 2\ndefaults\n mode http\nfrontend f\n bind :80\n acl a path_beg /a\n"
    " http-request set-header X-Weekday %[date,wday] if a\n capture request header Host len 32\n default_backend b\n"
    "backend b\n http-send-name-header X-Replica\n http-response set-header X-Time %[date]\n server s 10.0.0.1:80\n"
)
TYPE = "type.googleapis.com/envoy.extensions.filters.http"
PROCESSOR = (
    f'- {{name: envoy.filters.http.ext_proc, typed_config: {{"@type": {TYPE}.ext_proc.v3.ExternalProcessor, '
    "grpc_service: {envoy_grpc: {cluster_name: auth}}}}"
)
LUA = f'- {{name: lua, typed_config: {{"@type": {TYPE}.lua.v3.Lua, default_source_code: {{inline_string: "CODE"}}}}}}'


def uncommented(fleet: Path) -> str:
    return "".join(line for line in fleet.read_text().splitlines(keepends=True) if not line.lstrip().startswith("#"))


def own_lines_of(kind: str, text: str, tmp_path: Path) -> dict[str, str]:
    """Import with -f, check that the fleet is valid and renders, and return the files of own lines."""
    source, fleet = tmp_path / "source.conf", tmp_path / "fleet.yaml"
    source.write_text(text)
    code = command(["import", kind, str(source), "-f", str(fleet)])
    assert code == ("pool: " not in uncommented(fleet))
    assert command(["render", "-t", kind, str(fleet), "-d", str(tmp_path / "out")]) == 0
    rendered = "".join(item.read_text() for item in (tmp_path / "out").iterdir())
    files = {item.name: item.read_text() for item in sorted((tmp_path / "own").glob("*"))}
    lines = [line.partition("  #")[0] for file in files.values() for line in file.splitlines()]
    assert kind == "envoy" or [line for line in lines if line not in rendered] == []
    return files


def test_directives_of_nginx_become_own_lines(tmp_path: Path) -> None:
    assert own_lines_of("nginx", NGINX, tmp_path) == {
        "nginx-server-http.conf": "gzip_types text/plain;  # source.conf:1\nssl_ciphers HIGH;  # source.conf:1\n",
        "nginx-location-default.conf": "proxy_cookie_path / /x;  # source.conf:1\n",
    }


def test_own_lines_of_haproxy_keep_their_conditions(tmp_path: Path) -> None:
    assert own_lines_of("haproxy", HAPROXY, tmp_path) == {
        "haproxy-global.cfg": "nbthread 2  # source.conf:2\n",
        "haproxy-frontend-f.cfg": (
            "acl a path_beg /a  # source.conf:7\n"
            "http-request set-header X-Weekday %[date,wday] if a  # source.conf:8\n"
            "capture request header Host len 32  # source.conf:9\n"
        ),
        "haproxy-backend-b.cfg": (
            "http-response set-header X-Time %[date]  # source.conf:13\n"
            "http-send-name-header X-Replica  # source.conf:12\n"
        ),
    }


def test_word_with_a_line_break_is_not_an_own_line(tmp_path: Path) -> None:
    rule = ' http-request set-var(txn.a) str("x\\n http-request set-dst str(127.0.0.1) #")\n default_backend b\n'
    assert own_lines_of("haproxy", HAPROXY.replace(" default_backend b\n", rule), tmp_path)
    written = "".join(file.read_text() for file in (tmp_path / "own").iterdir())
    assert "capture request header" in written
    assert "set-dst" not in written


def test_external_processor_of_envoy_is_called_by_address(tmp_path: Path) -> None:
    (text,) = own_lines_of("envoy", envoy_text(filters=PROCESSOR), tmp_path).values()
    assert "google_grpc" in text
    assert "target_uri: 127.0.0.1:9191" in text
    assert "envoy_grpc" not in text


def test_own_lines_on_standard_output_are_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source.conf"
    source.write_text(NGINX)
    assert command(["import", "nginx", str(source)]) == 0
    fleet = capsys.readouterr().out
    assert "include" not in fleet
    assert "source.conf:1 ssl_ciphers HIGH" in fleet
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("haproxy", HAPROXY.replace("%[date]", "sk-s3cr3tvalue%[date]")),
        ("nginx", NGINX.replace("proxy_cookie_path / /x", "sub_filter token=s3cr3tvalue y")),
        ("envoy", envoy_text(filters=LUA.replace("CODE", "x = 'Bearer s3cr3tvalue'"))),
        ("envoy", envoy_text(filters=LUA.replace("CODE", "h:add('x-api-key', 's3cr3tvalue')"))),
        ("nginx", NGINX.replace("proxy_cookie_path / /x", "more_set_input_headers 'X-Auth: s3cr3tvalue'")),
    ],
)
def test_own_line_with_a_secret_is_not_written(kind: str, text: str, tmp_path: Path) -> None:
    files = own_lines_of(kind, text, tmp_path)
    assert "s3cr3tvalue" not in "".join([*files.values(), (tmp_path / "fleet.yaml").read_text()])


def test_file_of_own_lines_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, there = tmp_path / "source.conf", tmp_path / "own" / "nginx-server-http.conf"
    source.write_text(NGINX)
    there.parent.mkdir()
    there.write_text("mine")
    assert command(["import", "nginx", str(source), "-f", str(tmp_path / "fleet.yaml")]) == 1
    assert there.read_text() == "mine"
    assert not (tmp_path / "fleet.yaml").exists()
    assert "LB961" in capsys.readouterr().err


def test_unwritable_own_lines_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source.conf").write_text(NGINX)
    (tmp_path / "own").write_text("a file where the directory would be")
    assert command(["import", "nginx", str(tmp_path / "source.conf"), "-f", str(tmp_path / "fleet.yaml")]) == 1
    assert not (tmp_path / "fleet.yaml").exists()
    err = capsys.readouterr().err
    assert "LB961" in err
    assert "own lines" not in err


@pytest.mark.parametrize(("more", "message"), [("", ""), ("charset utf-8; ", "has 1 own line\n")])
def test_missing_directory_is_created(
    more: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source.conf", tmp_path / "new" / "fleet.yaml"
    source.write_text(f"server {{ listen 80; location / {{ {more}proxy_pass http://10.0.0.1:80; }} }}")
    assert command(["import", "nginx", str(source), "-f", str(out)]) == 0
    assert out.exists()
    assert message in capsys.readouterr().err
    assert (tmp_path / "new" / "own").exists() == bool(more)
