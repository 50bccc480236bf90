"""`lbctl init` reports servers that are unreachable, wrong or hostile with their URL, and writes nothing."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run
from lbctl.init.fleet import fleet_from_urls
from tests.support import init as fake
from tests.support.init import Handler, init_process, serving
from tests.support.lint import findings
from tests.support.processes.certs import Authority

Output = pytest.CaptureFixture[str]


async def hang(request: web.Request) -> web.StreamResponse:
    del request
    await asyncio.sleep(60)
    raise AssertionError


async def drip(request: web.Request) -> web.StreamResponse:
    """Send an endless body, one byte at a time."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"{")
        await asyncio.sleep(0.05)


async def flood(request: web.Request) -> web.StreamResponse:
    """Send an endless body as fast as possible."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"# " + b"x" * 65536)


async def nested(request: web.Request) -> web.StreamResponse:
    """Send deeply nested JSON."""
    del request
    return web.Response(body=b"[" * 500_000, content_type="application/json")


async def squeezed(request: web.Request) -> web.StreamResponse:
    """Send a compressed body that was not requested."""
    del request
    return web.Response(body=b"\x1f\x8b" + b"\0" * 100, headers={"Content-Encoding": "gzip"})


def answering(status: int, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=status, headers=headers)

    return handler


def answering_everywhere(said: object) -> Handler:
    return fake.answering(dict.fromkeys(fake.REQUESTED_PATHS, said))


def error_for(url: str, patience: float = 1.0) -> str:
    """Return the message of the one error that `init` reports for this URL."""
    diagnostics = Diagnostics()
    assert fleet_from_urls([url], diagnostics, patience).text == ""
    [item] = diagnostics
    assert str(item).startswith(f"{url}: error LB960: ")
    return item.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (hang, "no complete response within 1 s"),
        (drip, "no complete response within 1 s"),
        (flood, "a response larger than 4 MiB"),
        (nested, "its responses do not match a model server that init supports"),
        (squeezed, "the response uses an encoding that was not requested"),
        (answering(404), "its responses do not match"),
        (answering(401), "it requires a key: use --api-key-file"),
        (
            answering(301, Location="http://169.254.169.254/latest/meta-data/"),
            "it redirects, and init does not follow redirects",
        ),
        (fake.answering(fake.HTML), "an HTML page"),
        (fake.answering({"/api/version": {"version": "4", "ray_version": "2.49.0"}}), "this is Ray's dashboard"),
        (answering_everywhere({"name": ["triton"], "status": ["Healthy"], "data": 1}), "its responses do not match"),
        (answering_everywhere({}), "its responses do not match"),
        (answering_everywhere([[], {}, None]), "its responses do not match"),
    ],
    ids=["hang", "drip", "flood", "nested", "squeezed", "404", "401", "redirect", "html", "ray", "lists", "{}", "[]"],
)
def test_invalid_answer_is_reported_with_its_url(handler: Handler, words: str) -> None:
    with serving(handler) as (server,):
        assert words in error_for(server.url, 1.0 if "1 s" in words else 30.0)


def test_unreachable_server_is_reported_with_its_url() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert "Connection refused" in error_for(f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert error_for("http://no-such-host.invalid:8000", 5)


def test_redirect_is_not_followed() -> None:
    with serving(fake.vllm()) as (target,), serving(answering(307, Location=target.url)) as (server,):
        error_for(server.url)
        assert not target.requests


@pytest.mark.slow
@pytest.mark.slow
def test_errors_of_all_urls_are_reported(tmp_path: Path, capsys: Output) -> None:
    with serving(hang, fake.HTML, fake.vllm(), answering(401), fake.DCGM) as running:
        file = tmp_path / "fleet.yaml"
        assert run(["init", "-f", str(file), "--from", *[item.url for item in running]]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert not list(tmp_path.iterdir())
    assert [line.partition(": error LB960")[0] for line in err.splitlines()] == sorted(
        running[index].url for index in (0, 1, 3)
    )


def test_exporter_without_a_server_is_refused() -> None:
    with serving(fake.DCGM) as (exporter,):
        assert error_for(exporter.url) == (
            "this is a host's DCGM exporter, but none of the URLs is a model server on that host"
        )


SECRETS = ("http://user:hunter2@127.0.0.1:8000", "http://127.0.0.1:8000/?token=hunter2", "http://127.0.0.1/#hunter2")
WRONG = (
    "127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://169.254.169.254", "http://[fe80::1]:80", "http://0.0.0.0:80",
    "http://[::ffff:169.254.169.254]", "http://[fd00:ec2::254]:80", "http://a b", "http://127.0.0.1:0", "http://x:99999",
    "http://h\u00f6st:80", "http://127.0.0.1:8000/admin", "http://a%0ab:80", "file:///etc/passwd", "http://[::1",
)  # fmt: skip


def test_invalid_urls_are_reported_without_requests(capsys: Output) -> None:
    with serving(fake.vllm()) as (server,):
        assert run(["init", "--from", server.url, *SECRETS, *WRONG]) == 64
        assert not server.requests
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == len(SECRETS) + len(WRONG)
    assert all(line.startswith("error LB962: ") for line in err.splitlines())
    assert "hunter2" not in err


def test_urls_without_from_are_a_usage_error(capsys: Output) -> None:
    assert run(["init", "http://127.0.0.1:1"]) == 64
    assert "put --from before the URLs" in capsys.readouterr().err


def test_requests_contain_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This covers proxies of the environment, credentials of ~/.netrc, and cookies that a server sets."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with serving(answering(404, **{"Set-Cookie": "id=1"})) as (proxy,), serving(fake.vllm()) as (server,):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert fleet_from_urls([server.url], Diagnostics()).text
        assert not proxy.requests
        assert server.requests
        assert not any({"Authorization", "Cookie"} & set(item.headers) for item in server.requests)
        assert {item.method for item in server.requests} == {"GET"}


def test_existing_file_is_not_overwritten(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("mine\n")
    (tmp_path / "link.yaml").symlink_to("nowhere.yaml")
    for name in ("fleet.yaml", "link.yaml"):
        assert run(["init", "-f", str(tmp_path / name)]) == 1
        assert "fleet.yaml: error LB961" in (err := capsys.readouterr().err) or "link.yaml: error LB961" in err
    assert file.read_text() == "mine\n"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["fleet.yaml", "link.yaml"]


def test_file_created_during_requests_is_not_overwritten(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "fleet.yaml"
    answer = fake.answering(fake.vllm())

    async def meanwhile(request: web.Request) -> web.StreamResponse:
        file.write_text("mine\n")
        return await answer(request)

    with serving(meanwhile) as (server,):
        assert run(["init", "-f", str(file), "--from", server.url]) == 1
    assert "LB961" in capsys.readouterr().err
    assert file.read_text() == "mine\n"
    assert list(tmp_path.iterdir()) == [file]


def test_missing_directory_is_an_error(tmp_path: Path, capsys: Output) -> None:
    assert run(["init", "-f", str(tmp_path / "no" / "fleet.yaml")]) == 1
    assert "LB961" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_tls_certificates_are_verified_by_the_system(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = fake.server_context(authority.issue("localhost", ["localhost", "127.0.0.1"]))
    with serving(fake.vllm(), fake.vllm(), tls=context) as (first, second), serving(fake.vllm()) as (plain,):
        stranger = init_process(first.url)
        urls = [item.url.replace("127.0.0.1", "localhost") for item in (first, second)]
        known = init_process(*urls, SSL_CERT_FILE=str(authority.ca))
        wrong = init_process(plain.url.replace("http:", "https:"), SSL_CERT_FILE=str(authority.ca))
    assert stranger.returncode == 4
    assert f"{first.url}: error LB960: TLS: [SSL: CERTIFICATE_VERIFY_FAILED]" in stranger.stderr
    assert stranger.stdout == ""
    assert wrong.returncode == 4
    assert "LB960: TLS: " in wrong.stderr
    assert known.returncode == 0, known.stderr
    assert not findings(known.stdout)
    [pool] = yaml.safe_load(known.stdout)["pools"].values()
    assert pool["tls"] == {"ca": str(authority.ca), "server_name": "localhost"}
    assert pool["telemetry"]["sources"] == [{"kind": "vllm", "url": "https://{host}:{port}/metrics"}]


HOSTILE = (
    'x"\nlisteners: {evil: {bind: "0.0.0.0:1"}}\n#',
    "a\n# lbctl: ignore LB520 (mine)",
    "*alias", "!!python/object:os.system", "{{7*7}}", "${PATH}", "a: b", "- a", "\u202egnp.exe", "\x1b[31mred",
    "../../etc/passwd", "\ud83d\ude00", "x" * 5000, "'; return 200 'x'; #", "%{+Q}o", " a", "",
    "true", "null", "0x10", "1e3", "2026-01-01",
)  # fmt: skip


def test_hostile_model_names_are_not_written() -> None:
    """Servers with valid names are routed as usual, and every pool is reachable."""
    servers = [fake.vllm(name) for name in HOSTILE]
    listed = fake.listing("vllm", "good", *HOSTILE)
    listed["data"].append({"id": {"a": 1}, "owned_by": ["vllm"], "root": 7, "parent": 0})
    with serving(*servers, fake.vllm("other"), {"/v1/models": listed}) as running:
        text = fleet_from_urls([item.url for item in running], Diagnostics()).text
    assert not findings(text)
    for name in ("evil", "mine", "alias", "python", "7*7", "PATH", "- a:", "gnp", "31m", "passwd", "x" * 99, "+Q"):
        assert name not in text
    assert all(line.isascii() or "──" in line for line in text.splitlines())
    fleet = yaml.safe_load(text)
    assert list(fleet["listeners"]) == ["gateway"]
    routes = fleet["routes"].values()
    assert {pool for item in routes for pool in (item.get("pool"), *item.get("split", ()))} >= set(fleet["pools"])


@pytest.mark.parametrize("name", ["true", "null", "0x10", "1e3", "2026-01-01", "1.0"])
def test_model_name_that_yaml_converts_stays_a_name(name: str) -> None:
    with serving(fake.vllm(name)) as (server,):
        fleet = yaml.safe_load(fleet_from_urls([server.url], Diagnostics()).text)
    [(pool, settings)] = fleet["pools"].items()
    assert settings["model"] == {"name": name}
    assert [item["pool"] for item in fleet["routes"].values()] == [pool] == [f"model-{name}"]


def test_model_name_that_looks_like_a_secret_is_refused(capsys: Output) -> None:
    with serving(fake.vllm("sk-0123456789abcdef0123")) as (server,):
        assert run(["init", "--from", server.url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "LB963" in err
    assert "LB524" in err
