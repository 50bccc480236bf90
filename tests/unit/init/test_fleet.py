"""`lbctl init` writes a fleet for servers on loopback. It has no lint findings."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from lbctl.cli import run
from lbctl.signals.detect import page_kind
from tests.docs.pages import blocks
from tests.support import init as fake
from tests.support.init import LLAMA, Answers, fleet_of_every_kind, serving, text_from_urls
from tests.support.lint import findings
from tests.support.paths import ROOT
from tests.support.signals import kind_of

Output = pytest.CaptureFixture[str]


def fleet_from(*servers: Answers) -> dict[str, Any]:
    with serving(*servers) as running:
        text = text_from_urls(item.url for item in running)
    assert not findings(text)
    fleet: dict[str, Any] = yaml.safe_load(text)
    return fleet


def pool_from(*servers: Answers) -> dict[str, Any]:
    """Return the only pool of the fleet for these servers."""
    pool: dict[str, Any]
    [pool] = fleet_from(*servers)["pools"].values()
    return pool


def health_path(pool: dict[str, Any]) -> object:
    return pool["health"]["active"].get("http", {}).get("path")


PAGE = "http://{host}:{port}"
CASES: dict[str, tuple[Answers, str | None, str | None, str | None, str]] = {
    "vLLM": (fake.vllm(), "/health", "vllm", "/metrics", "/v1/"),
    "SGLang": (fake.sglang(), "/health_generate", "sglang", "/metrics", "/v1/"),
    "TGI": (fake.TGI, "/health", "tgi", "/metrics", "/v1/"),
    "TEI": (fake.TEI, "/health", None, None, "/v1/"),
    "llama.cpp": (fake.llamacpp(), "/health", "llamacpp", "/metrics", "/v1/"),
    "llama.cpp without metrics": (fake.llamacpp(page=False), "/health", None, None, "/v1/"),
    "trtllm-serve": (fake.TRTLLM, "/health", "trtllm", "/prometheus/metrics", "/v1/"),
    "LMDeploy": (fake.LMDEPLOY, "/health", "lmdeploy", "/metrics", "/v1/"),
    "Dynamo": (fake.DYNAMO, "/health", "dynamo", "/metrics", "/v1/"),
    "NIM": (fake.NIM, "/v1/health/ready", "nim", "/v1/metrics", "/v1/"),
    "NIM on vLLM": (fake.NIM_NEWER, "/v1/health/ready", "vllm", "/v1/metrics", "/v1/"),
    "Triton": (fake.v2("triton", "a", "b"), "/v2/health/ready", "triton", ":8002", "/v2/models/"),
    "MLServer": (fake.v2("mlserver", "iris"), "/v2/health/ready", "kserve", ":8082", "/v2/models/"),
    "KServe": (fake.KSERVE, "/v2/health/ready", "kserve", "/metrics", "/v2/models/"),
    "KServe v1": (fake.KSERVE_V1, "/v1/models/iris", "kserve", "/metrics", "/v1/models/"),
    "OpenVINO": (fake.v2("OpenVINO Model Server", "a"), "/v2/health/ready", None, None, "/v2/models/"),
    "Ray Serve": (fake.RAY, "/-/healthz", "ray", ":8080", "/"),
    "Ray Serve LLM": (fake.RAY_LLM, "/-/healthz", "ray", ":8080", "/v1/"),
    "TorchServe": (fake.TORCHSERVE, "/ping", "torchserve", ":8082", "/predictions/"),
    "TensorFlow Serving": (fake.TFSERVING, None, "tfserving", "/monitoring/prometheus/metrics", "/v1/models/"),
    "any OpenAI API": (fake.OTHER, "/v1/models", None, None, "/v1/"),
}
"""Server → its answers, the path of its check, the kind and page of its telemetry, the first prefix of its routes."""


@pytest.mark.parametrize("name", CASES)
def test_kind_of_server_is_recognised_by_its_answers(name: str) -> None:
    answers, path, kind, page, prefix = CASES[name]
    fleet = fleet_from(answers)
    [pool] = fleet["pools"].values()
    assert health_path(pool) == path
    sources = pool.get("telemetry", {"sources": []})["sources"]
    if kind is None or page is None:
        assert not sources
    else:
        url = f"http://{{host}}{page}/metrics" if page.startswith(":") else PAGE + page
        assert sources == [{"kind": kind, "url": url}]
    first = next(iter(fleet["routes"].values()))
    assert first["match"] == {"path_prefix": prefix}


@pytest.mark.parametrize("name", ["triton", "mlserver"])
def test_v2_routes_exclude_administration(name: str) -> None:
    matches = [route["match"] for route in fleet_from(fake.v2(name, "a"))["routes"].values()]
    assert matches == [{"path_prefix": "/v2/models/"}, {"path_prefix": "/v2/health/"}, {"path": "/v2"}]


def test_kind_of_server_is_recognised_by_its_metrics() -> None:
    for page in sorted(fake.METRICS.glob("*.prom")):
        assert page_kind(page.read_bytes()) == kind_of(page.stem), page.name


USUAL = '{kind: kserve, url: "http://{host}:8082/metrics"}'
ML = fake.v2("mlserver", "iris")


@pytest.mark.parametrize(
    ("hosts", "sources", "remark"),
    [
        ([[ML]], 1, '8082/metrics"}   # default port, not queried'),
        (
            [[ML, fake.DCGM], [ML]],
            2,
            "# Sources on default ports were not queried. To query them, add their URLs to `init --from`.",
        ),
        ([[ML, ML]], 0, "# MLServer exposes metrics on port 8082 by default, and several servers share a host."),
    ],
)
def test_assumed_metrics_port_has_a_comment(hosts: list[list[Answers]], sources: int, remark: str) -> None:
    with ExitStack() as stack:
        running = [stack.enter_context(serving(*says, host=f"127.0.0.{n}")) for n, says in enumerate(hosts, 1)]
        text = text_from_urls(item.url for host in running for item in host)
    assert text.count(USUAL) == sources
    assert remark in text


def test_servers_of_one_model_are_one_pool_with_its_adapters() -> None:
    pool = pool_from(fake.vllm(adapters=("sql", "chat")), fake.vllm(adapters=("chat", "sql")))
    assert len(pool["replicas"]) == 2
    assert pool["model"] == {"name": LLAMA, "adapters": ["sql", "chat"]}


def test_different_servers_share_a_pool_with_a_common_check() -> None:
    pool = pool_from(fake.vllm(), fake.sglang())
    assert health_path(pool) == "/health"
    kinds = [item["telemetry"]["sources"][0]["kind"] for item in pool["replicas"]]
    assert kinds == ["vllm", "sglang"]


def test_different_servers_without_common_check_share_a_route() -> None:
    fleet = fleet_from(fake.vllm(), fake.NIM, fake.NIM, fake.OTHER)
    assert fleet["routes"]["llama-3.1-8b-instruct"] == {
        "match": {"path_prefix": "/v1/", "model": [LLAMA]},
        "split": {"llama-3.1-8b-instruct": 1, "llama-3.1-8b-instruct-2": 2},
    }


def test_openai_models_are_routed_by_the_body() -> None:
    fleet = fleet_from(fake.vllm("acme/a", "a-alias"), fake.sglang("acme/b"))
    routes = fleet["routes"]
    assert routes["a"] == {"match": {"path_prefix": "/v1/", "model": ["a-alias", "acme/a"]}, "pool": "a"}
    assert routes["b"] == {"match": {"path_prefix": "/v1/", "model": ["acme/b"]}, "pool": "b"}
    listing = {"match": {"path": "/v1/models", "methods": ["GET"]}, "respond": {"models": True}}
    assert routes["models"] == listing, "so that a model that is added is listed too"


def test_v2_models_are_routed_by_the_path() -> None:
    fleet = fleet_from(fake.v2("triton", "a", "both"), fake.v2("mlserver", "b", "both"))
    routes = {item["match"]["path_prefix"]: item for item in fleet["routes"].values()}
    assert routes["/v2/models/a/"]["pool"] == "a"
    assert routes["/v2/models/b/"]["pool"] == "b"
    assert routes["/v2/models/both/"]["split"] == {"a": 1, "b": 1}


def test_servers_with_unknown_models_get_separate_paths() -> None:
    locked = {key: value for key, value in fake.vllm().items() if key != "/v1/models"}
    fleet = fleet_from({**locked, "/v1/models": (401, '{"error": "Unauthorized"}')}, locked)
    assert [item["match"] for item in fleet["routes"].values()] == [
        {"path_prefix": "/vllm/"},
        {"path_prefix": "/vllm-2/"},
    ]
    assert all(item["rewrite"] == {"path_prefix": "/"} for item in fleet["routes"].values())


def test_key_file_gives_access_to_the_models(tmp_path: Path, capsys: Output) -> None:
    key, accepted_header = tmp_path / "key", "Bearer sk-of-the-servers"
    open_to_all, closed = fake.answering(fake.vllm()), fake.answering({**fake.vllm(), "/v1/models": (401, "{}")})

    async def guarded(request: web.Request) -> web.StreamResponse:
        return await (open_to_all if request.headers.get("authorization") == accepted_header else closed)(request)

    key.write_text("sk-of-the-servers\n")
    with fake.serving(guarded) as (server,):
        assert run(["init", "--api-key-file", str(key), "--from", server.url]) == 0
        out, err = capsys.readouterr()
        assert "vLLM, 1 model\n" in err
        assert "sk-of-the-servers" not in out + err
        (pool,) = yaml.safe_load(out)["pools"].values()
        assert pool["credentials"] == {"header": "authorization", "file": "replica-key"}
        fleet = tmp_path / "fleet.yaml"
        assert run(["init", "--api-key-file", str(key), "-f", str(fleet), "--from", server.url]) == 0
        assert (tmp_path / "replica-key").read_text() == "Bearer sk-of-the-servers\n"
        assert (tmp_path / "replica-key").stat().st_mode & 0o777 == 0o600
        assert "sk-of-the-servers" not in fleet.read_text() + "".join(capsys.readouterr())
        assert run(["lint", str(fleet)]) == 0
        fleet.unlink()
        assert run(["init", "--api-key-file", str(key), "-f", str(fleet), "--from", server.url]) == 1
        assert "replica-key: error LB961" in capsys.readouterr().err
        assert not fleet.exists()
        assert run(["init", "--from", server.url]) == 0
        assert "vLLM, models unknown: the server requires a key (use --api-key-file)\n" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"two words\n", b"\xff\n"])
def test_key_file_without_a_key_is_refused(tmp_path: Path, content: bytes, capsys: Output) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    assert run(["init", "--api-key-file", str(file), "--from", "http://127.0.0.1:9"]) == 64
    assert run(["init", "--api-key-file", f"{file}.none", "--from", "http://127.0.0.1:9"]) == 64
    assert "two" not in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--api-key-file", "key"), ("--proxy", "nginx")])
def test_options_for_servers_need_from(option: tuple[str, str], capsys: Output) -> None:
    assert run(["init", *option]) == 64
    assert "require --from" in capsys.readouterr().err


def test_unsuitable_proxy_is_an_error(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "fleet.yaml"
    with fake.serving(fake.vllm(), fake.sglang("qwen")) as servers:
        command = ["init", "-f", str(file), "--from", *[server.url for server in servers], "--proxy"]
        assert run([*command, "nginx"]) == 1
        err = capsys.readouterr().err
        assert "lbctl: Envoy supports the whole fleet\n" in err
        assert "lbctl: nginx is not suitable: nginx reads the model only from the x-model header" in err
        assert "\nerror LB971 routes." in err
        assert not file.exists()
        assert run([*command, "haproxy"]) == 0


def test_proxies_of_a_ray_cluster_are_one_pool() -> None:
    routes = {"/-/routes": {"/rank": "ranker", "/embed": "embedder"}}
    fleet = fleet_from(routes, routes)
    assert [item["match"]["path_prefix"] for item in fleet["routes"].values()] == ["/embed", "/rank"]
    assert len(fleet["pools"]["ray-serve"]["replicas"]) == 2
    assert len(fleet_from(routes, {"/-/routes": {"/rank": "other"}})["pools"]) == 2


def test_models_of_torchserve_come_from_its_management_port() -> None:
    assert pool_from(fake.TORCHSERVE, fake.MANAGEMENT)["model"] == {"name": "densenet161"}


def test_gpu_exporter_of_the_host_gives_the_gpus() -> None:
    with serving(fake.vllm(), fake.DCGM) as (server, exporter):
        pool = yaml.safe_load(text := text_from_urls([server.url, exporter.url]))["pools"]["llama-3.1-8b-instruct"]
    assert not findings(text)
    assert pool["replicas"][0]["gpu"] == "A100-80GB"
    assert pool["replicas"][0]["gpu_count"] == 3
    assert pool["telemetry"]["sources"][1]["url"] == f"http://{{host}}:{exporter.url.rpartition(':')[2]}/metrics"


def test_gpus_shared_by_servers_need_a_decision() -> None:
    with serving(fake.vllm(), fake.vllm(), fake.DCGM) as running:
        text = text_from_urls(item.url for item in running)
    assert not findings(text)
    assert text.count("lbctl: ignore LB617") == 1
    assert "gpu_count:" not in text.split("pools:\n")[1]


@pytest.mark.parametrize(("servers", "sources"), [(1, ["vllm", "agent"]), (2, ["vllm"])])
def test_agent_is_a_source_of_the_only_server_of_a_host(servers: int, sources: list[str]) -> None:
    with serving(*[fake.vllm()] * servers, {"/metrics": fake.metrics("agent")}) as running:
        pool = yaml.safe_load(text_from_urls(item.url for item in running))["pools"]["llama-3.1-8b-instruct"]
    assert [source["kind"] for source in pool["telemetry"]["sources"]] == sources


def test_triton_metrics_page_of_the_host_is_a_source() -> None:
    with serving(fake.v2("triton", "a"), {"/metrics": fake.metrics("triton")}) as (server, page):
        text = text_from_urls([server.url, page.url])
    assert f"http://{{host}}:{page.url.rpartition(':')[2]}/metrics" in text
    assert ":8002" not in text


def test_listener_takes_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(fake.llamacpp()) as (server,):
        port = int(server.url.rpartition(":")[2])
        monkeypatch.setattr("lbctl.init.fleet.FIRST_PORT", port)
        assert f'bind: "127.0.0.1:{port + 1}"' in text_from_urls([server.url])


def test_documentation_shows_the_output_of_init(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts of the page are replaced by loopback addresses with free ports."""
    monkeypatch.chdir(tmp_path)
    (block,) = [item for item in blocks("docs/how-to/write-a-fleet-file.md") if "by" in item.words]
    ((command, *expected),) = [[item.text, *item.printed] for item in block.commands]
    with serving(fake.vllm(), fake.DCGM) as one, serving(fake.vllm(), fake.DCGM, host="127.0.0.2") as two:
        for documented, server in zip(("gpu1:8000", "gpu1:9400", "gpu2:8000", "gpu2:9400"), (*one, *two), strict=True):
            command = command.replace(f"http://{documented}", server.url)
            expected = [line.replace(f"http://{documented}", server.url) for line in expected]
        assert run(command.split()[1:]) == 0
    assert capsys.readouterr().err.splitlines() == expected


def test_documentation_lists_every_kind() -> None:
    from lbctl.init import kinds

    page = (ROOT / "docs" / "reference" / "init.md").read_text(encoding="utf-8")
    cells = {cell.strip() for line in page.splitlines() for cell in re.split(r"[|,]", line)}
    assert {item.title for item in vars(kinds).values() if isinstance(item, kinds.ServerKind)} <= cells


def test_fleet_of_every_kind_has_no_findings() -> None:
    text = fleet_of_every_kind()
    assert not findings(text)
    assert len(yaml.safe_load(text)["pools"]) == 10


def test_default_fleet_is_short_and_without_findings(capsys: Output) -> None:
    assert run(["init"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# yaml-language-server: $schema=./lbctl.schema.json\n")
    assert "for prefix caches: pick" in text
    assert 50 <= len(text.splitlines()) <= 90
    assert not findings(text)
    assert not re.search(r"\b(?!127\.)\d+\.\d+\.\d+\.\d+:", text.replace("0.0.0.0", ""))
