"""What `lbctl init` does with servers that are away, wrong or hostile: it says so with the URL, and writes nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run
from lbctl.init.fleet import fleet_from_urls
from tests.support import init as it
from tests.support.init import Handler, serving
from tests.support.lint import findings
from tests.support.processes.binaries import KINDS, require
from tests.support.processes.certs import Authority

Output = pytest.CaptureFixture[str]


async def hang(request: web.Request) -> web.StreamResponse:
    del request
    await asyncio.sleep(60)
    raise AssertionError


async def drip(request: web.Request) -> web.StreamResponse:
    """A body without an end, a byte at a time."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"{")
        await asyncio.sleep(0.05)


async def flood(request: web.Request) -> web.StreamResponse:
    """A body without an end, as fast as it is taken."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"# " + b"x" * 65536)


async def nested(request: web.Request) -> web.StreamResponse:
    """JSON that no parser gets to the bottom of."""
    del request
    return web.Response(body=b"[" * 500_000, content_type="application/json")


async def squeezed(request: web.Request) -> web.StreamResponse:
    """What nobody asked for: a body that inflates to gigabytes."""
    del request
    return web.Response(body=b"\x1f\x8b" + b"\0" * 100, headers={"Content-Encoding": "gzip"})


def answering(status: int, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=status, headers=headers)

    return handler


def everywhere(said: object) -> Handler:
    return it.answering(dict.fromkeys(it.ASKED, said))


def refused(url: str, patience: float = 1.0) -> str:
    """What is said of the one URL, that makes no fleet."""
    found = Diagnostics()
    assert fleet_from_urls([url], found, patience).text == ""
    [item] = found
    assert str(item).startswith(f"{url}: error LB960: ")
    return item.message


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (hang, "no whole answer within 1 s"),
        (drip, "no whole answer within 1 s"),
        (flood, "a body of more than 1 MiB"),
        (nested, "none of its answers is one of a model server that init knows"),
        (squeezed, "an encoding that was not asked for"),
        (answering(404), "none of its answers"),
        (answering(401), "it wants a key: give it with --api-key-file"),
        (answering(301, Location="http://169.254.169.254/latest/meta-data/"), "it redirects, and init does not follow"),
        (it.answering(it.HTML), "an HTML page"),
        (it.answering({"/api/version": {"version": "4", "ray_version": "2.49.0"}}), "this is Ray's dashboard"),
        (everywhere({"name": ["triton"], "status": ["Healthy"], "data": 1}), "none of its"),
        (everywhere({}), "none of its answers"),
        (everywhere([[], {}, None]), "none of its answers"),
    ],
    ids=["hang", "drip", "flood", "nested", "squeezed", "404", "401", "redirect", "html", "ray", "lists", "{}", "[]"],
)
def test_a_server_that_does_not_answer_as_one_is_told_with_its_url(handler: Handler, words: str) -> None:
    with serving(handler) as (server,):
        assert words in refused(server.url)


def test_a_port_where_nobody_or_no_http_answers_is_told_with_its_url() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert "Connection refused" in refused(f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert refused("http://no-such-host.invalid:8000", 5)


def test_a_redirect_is_followed_by_nobody() -> None:
    with serving(it.vllm()) as (target,), serving(answering(307, Location=target.url)) as (server,):
        refused(server.url)
        assert not target.requests


@pytest.mark.slow
def test_every_url_is_asked_at_once_and_every_trouble_is_told(tmp_path: Path, capsys: Output) -> None:
    with serving(hang, it.HTML, it.vllm(), answering(401), it.DCGM) as there:
        file = tmp_path / "fleet.yaml"
        assert run(["init", "-f", str(file), "--from", *[item.url for item in there]]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert not list(tmp_path.iterdir())
    assert [line.partition(": error LB960")[0] for line in err.splitlines()] == sorted(
        there[index].url for index in (0, 1, 3)
    )


def test_an_exporter_without_a_server_beside_it_makes_no_fleet() -> None:
    with serving(it.DCGM) as (exporter,):
        assert refused(exporter.url) == "DCGM exporter, and none of the URLs is a server on that host"


SECRETS = ("http://user:hunter2@127.0.0.1:8000", "http://127.0.0.1:8000/?token=hunter2", "http://127.0.0.1/#hunter2")
WRONG = (
    "127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://169.254.169.254", "http://[fe80::1]:80", "http://0.0.0.0:80",
    "http://[::ffff:169.254.169.254]", "http://[fd00:ec2::254]:80", "http://a b", "http://127.0.0.1:0", "http://x:99999",
    "http://h\u00f6st:80", "http://127.0.0.1:8000/admin", "http://a%0ab:80", "file:///etc/passwd", "http://[::1",
)  # fmt: skip


def test_urls_that_init_does_not_ask_are_all_told_and_nobody_is_asked(capsys: Output) -> None:
    with serving(it.vllm()) as (server,):
        assert run(["init", "--from", server.url, *SECRETS, *WRONG]) == 64
        assert not server.requests
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == len(SECRETS) + len(WRONG)
    assert all(line.startswith("error LB962: ") for line in err.splitlines())
    assert "hunter2" not in err


def test_urls_without_their_option_are_a_wrong_command_line(capsys: Output) -> None:
    assert run(["init", "http://127.0.0.1:1"]) == 64
    assert "URLs stand after --from" in capsys.readouterr().err


def test_nothing_of_the_surroundings_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy of the environment, no credentials of ~/.netrc, no cookie that a server sets."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with serving(answering(404, **{"Set-Cookie": "id=1"})) as (proxy,), serving(it.vllm()) as (server,):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert fleet_from_urls([server.url], Diagnostics()).text
        assert not proxy.requests
        assert server.requests
        assert not any({"Authorization", "Cookie"} & set(item.headers) for item in server.requests)
        assert {item.method for item in server.requests} == {"GET"}


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("mine\n")
    (tmp_path / "link.yaml").symlink_to("nowhere.yaml")
    for name in ("fleet.yaml", "link.yaml"):
        assert run(["init", "-f", str(tmp_path / name)]) == 1
        assert "fleet.yaml: error LB961" in (err := capsys.readouterr().err) or "link.yaml: error LB961" in err
    assert file.read_text() == "mine\n"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["fleet.yaml", "link.yaml"]


def test_a_file_that_comes_while_servers_are_asked_is_not_written_over(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "fleet.yaml"
    answer = it.answering(it.vllm())

    async def meanwhile(request: web.Request) -> web.StreamResponse:
        file.write_text("mine\n")
        return await answer(request)

    with serving(meanwhile) as (server,):
        assert run(["init", "-f", str(file), "--from", server.url]) == 1
    assert "LB961" in capsys.readouterr().err
    assert file.read_text() == "mine\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_directory_that_is_not_there_is_an_error_and_not_made(tmp_path: Path, capsys: Output) -> None:
    assert run(["init", "-f", str(tmp_path / "no" / "fleet.yaml")]) == 1
    assert "LB961" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def _init(*urls: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own: the system's authorities are read once."""
    command = [sys.executable, "-m", "lbctl", "init", "--from", *urls]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


@pytest.mark.e2e
def test_tls_is_believed_by_the_systems_authorities_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = it.server_context(authority.issue("localhost", ["localhost", "127.0.0.1"]))
    with serving(it.vllm(), it.vllm(), tls=context) as (first, second), serving(it.vllm()) as (plain,):
        stranger = _init(first.url)
        urls = [item.url.replace("127.0.0.1", "localhost") for item in (first, second)]
        known = _init(*urls, SSL_CERT_FILE=str(authority.ca))
        wrong = _init(plain.url.replace("http:", "https:"), SSL_CERT_FILE=str(authority.ca))
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
    file = tmp_path / "fleet.yaml"
    file.write_text(known.stdout)
    for kind in KINDS:
        require(kind)
        assert run(["render", "-t", kind, "--check", "-d", str(tmp_path / kind), str(file)]) == 0


HOSTILE = (
    'x"\nlisteners: {evil: {bind: "0.0.0.0:1"}}\n#',
    "a\n# lbctl: ignore LB520 (mine)",
    "*alias", "!!python/object:os.system", "{{7*7}}", "${PATH}", "a: b", "- a", "\u202egnp.exe", "\x1b[31mred",
    "../../etc/passwd", "\ud83d\ude00", "x" * 5000, "'; return 200 'x'; #", "%{+Q}o", " a", "",
    "true", "null", "0x10", "1e3", "2026-01-01",
)  # fmt: skip


def test_hostile_names_of_models_reach_no_line_of_the_file() -> None:
    """A good server beside them is routed as ever; a bad name makes no pool unreachable."""
    servers = [it.vllm(name) for name in HOSTILE]
    listed = it.listing("vllm", "good", *HOSTILE)
    listed["data"].append({"id": {"a": 1}, "owned_by": ["vllm"], "root": 7, "parent": 0})
    with serving(*servers, it.vllm("other"), {"/v1/models": listed}) as there:
        text = fleet_from_urls([item.url for item in there], Diagnostics()).text
    assert not findings(text)
    for name in ("evil", "mine", "alias", "python", "7*7", "PATH", "- a:", "gnp", "31m", "passwd", "x" * 99, "+Q"):
        assert name not in text
    assert all(line.isascii() or "──" in line for line in text.splitlines())
    fleet = yaml.safe_load(text)
    assert list(fleet["listeners"]) == ["gateway"]
    routes = fleet["routes"].values()
    assert {pool for item in routes for pool in (item.get("pool"), *item.get("split", ()))} >= set(fleet["pools"])


@pytest.mark.parametrize("name", ["true", "null", "0x10", "1e3", "2026-01-01", "1.0"])
def test_a_model_whose_name_yaml_reads_as_something_else_stays_a_name(name: str) -> None:
    with serving(it.vllm(name)) as (server,):
        fleet = yaml.safe_load(fleet_from_urls([server.url], Diagnostics()).text)
    [(pool, meant)] = fleet["pools"].items()
    assert meant["model"] == {"name": name}
    assert [item["pool"] for item in fleet["routes"].values()] == [pool] == [f"model-{name}"]


def test_a_name_that_looks_like_a_secret_makes_no_fleet(capsys: Output) -> None:
    with serving(it.vllm("sk-0123456789abcdef0123")) as (server,):
        assert run(["init", "--from", server.url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "LB963" in err
    assert "LB524" in err
