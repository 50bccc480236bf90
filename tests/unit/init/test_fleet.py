"""`lbctl init` asks real servers on loopback; what it writes must be a fleet that lint and all proxies accept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run
from lbctl.init.fleet import fleet_from_urls
from lbctl.init.identify import page_kind
from tests.docs.pages import blocks
from tests.support import init as it
from tests.support.init import LLAMA, Says, serving
from tests.support.lint import findings
from tests.support.paths import ROOT
from tests.support.processes.binaries import KINDS, Kind, require

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def everything() -> Iterator[str]:
    """The file of a fleet with a server of every kind, on hosts of their own where kinds need it."""
    with (
        serving(it.vllm(), it.sglang("qwen/qwen3"), it.OTHER, it.llamacpp("a/gguf", page=False)) as first,
        serving(it.v2("triton", "resnet"), it.DCGM, it.TGI, host="127.0.0.2") as second,
        serving(it.v2("mlserver", "iris"), it.RAY, it.TEI, it.TORCHSERVE, it.TFSERVING, host="127.0.0.3") as third,
    ):
        yield _written(item.url for item in (*first, *second, *third))


def _written(urls: Iterable[str]) -> str:
    found = Diagnostics()
    text = fleet_from_urls(list(urls), found).text
    assert not len(found), [str(item) for item in found]
    return text


def fleet_of(*servers: Says) -> dict[str, Any]:
    with serving(*servers) as there:
        text = _written(item.url for item in there)
    assert not findings(text)
    fleet: dict[str, Any] = yaml.safe_load(text)
    return fleet


def pool_of(*servers: Says) -> dict[str, Any]:
    """The only pool of these servers' fleet."""
    pool: dict[str, Any]
    [pool] = fleet_of(*servers)["pools"].values()
    return pool


def ready(pool: dict[str, Any]) -> object:
    return pool["health"]["active"].get("http", {}).get("path")


PAGE = "http://{host}:{port}"
CASES: dict[str, tuple[Says, str | None, str | None, str | None, str]] = {
    "vLLM": (it.vllm(), "/health", "vllm", "/metrics", "/v1/"),
    "SGLang": (it.sglang(), "/health_generate", "sglang", "/metrics", "/v1/"),
    "TGI": (it.TGI, "/health", "tgi", "/metrics", "/v1/"),
    "TEI": (it.TEI, "/health", None, None, "/v1/"),
    "llama.cpp": (it.llamacpp(), "/health", "llamacpp", "/metrics", "/v1/"),
    "llama.cpp without metrics": (it.llamacpp(page=False), "/health", None, None, "/v1/"),
    "trtllm-serve": (it.TRTLLM, "/health", "trtllm", "/prometheus/metrics", "/v1/"),
    "LMDeploy": (it.LMDEPLOY, "/health", "lmdeploy", "/metrics", "/v1/"),
    "NIM": (it.NIM, "/v1/health/ready", "nim", "/v1/metrics", "/v1/"),
    "NIM on vLLM": (it.NIM_NEWER, "/v1/health/ready", "vllm", "/v1/metrics", "/v1/"),
    "Triton": (it.v2("triton", "a", "b"), "/v2/health/ready", "triton", ":8002", "/v2/models/"),
    "MLServer": (it.v2("mlserver", "iris"), "/v2/health/ready", "kserve", ":8082", "/v2/models/"),
    "KServe": (it.KSERVE, "/v2/health/ready", "kserve", "/metrics", "/v2/models/"),
    "KServe v1": (it.KSERVE_V1, "/v1/models/iris", "kserve", "/metrics", "/v1/models/"),
    "OpenVINO": (it.v2("OpenVINO Model Server", "a"), "/v2/health/ready", None, None, "/v2/models/"),
    "Ray Serve": (it.RAY, "/-/healthz", "ray", ":8080", "/"),
    "Ray Serve LLM": (it.RAY_LLM, "/-/healthz", "ray", ":8080", "/v1/"),
    "TorchServe": (it.TORCHSERVE, "/ping", "torchserve", ":8082", "/predictions/"),
    "TensorFlow Serving": (it.TFSERVING, None, "tfserving", "/monitoring/prometheus/metrics", "/v1/models/"),
    "any OpenAI API": (it.OTHER, "/v1/models", None, None, "/v1/"),
}
"""Server → its answers, the path of its check, the kind and page of its telemetry, the first prefix of its routes."""


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_server_is_told_by_its_own_answers(name: str) -> None:
    says, path, kind, page, prefix = CASES[name]
    fleet = fleet_of(says)
    [pool] = fleet["pools"].values()
    assert ready(pool) == path
    sources = pool.get("telemetry", {"sources": []})["sources"]
    if kind is None or page is None:
        assert not sources
    else:
        url = f"http://{{host}}{page}/metrics" if page.startswith(":") else PAGE + page
        assert sources == [{"kind": kind, "url": url}]
    first = next(iter(fleet["routes"].values()))
    assert first["match"] == {"path_prefix": prefix}


@pytest.mark.parametrize("name", ["triton", "mlserver"])
def test_clients_of_the_v2_protocol_reach_metadata_and_health_but_no_administration(name: str) -> None:
    matches = [route["match"] for route in fleet_of(it.v2(name, "a"))["routes"].values()]
    assert matches == [{"path_prefix": "/v2/models/"}, {"path_prefix": "/v2/health/"}, {"path": "/v2"}]


def test_the_metrics_of_every_kind_are_known_by_their_names() -> None:
    for page in sorted(it.METRICS.glob("*.prom")):
        kind = "kserve" if page.stem.startswith("kserve") else page.stem
        for name in ("_v0", "_v1", "_mig", "_older", "_mi2xx", "_ranks", "_trtllm", "_vllm"):
            kind = kind.removesuffix(name)
        assert page_kind(page.read_bytes()) == kind, page.name


USUAL = '{kind: kserve, url: "http://{host}:8082/metrics"}'
ML = it.v2("mlserver", "iris")


@pytest.mark.parametrize(
    ("hosts", "sources", "remark"),
    [
        ([[ML]], 1, '8082/metrics"}   # its usual port, not asked'),
        ([[ML, it.DCGM], [ML]], 2, "# Sources at a usual port were not asked: `init --from` takes these URLs too."),
        ([[ML, ML]], 0, "# MLServer has its metrics at port 8082 by default, and several of it are on one"),
    ],
)
def test_a_port_that_was_not_asked_is_written_with_a_remark(hosts: list[list[Says]], sources: int, remark: str) -> None:
    with ExitStack() as stack:
        there = [stack.enter_context(serving(*says, host=f"127.0.0.{n}")) for n, says in enumerate(hosts, 1)]
        text = _written(item.url for host in there for item in host)
    assert text.count(USUAL) == sources
    assert remark in text


def test_servers_of_one_model_are_one_pool_and_its_adapters_are_named() -> None:
    pool = pool_of(it.vllm(adapters=("sql", "chat")), it.vllm(adapters=("chat", "sql")))
    assert len(pool["replicas"]) == 2
    assert pool["model"] == {"name": LLAMA, "adapters": ["sql", "chat"]}


def test_unlike_servers_of_one_model_share_a_pool_by_the_check_that_both_know() -> None:
    pool = pool_of(it.vllm(), it.sglang())
    assert ready(pool) == "/health"
    kinds = [item["telemetry"]["sources"][0]["kind"] for item in pool["replicas"]]
    assert kinds == ["vllm", "sglang"]


def test_unlike_servers_of_one_model_without_a_common_check_share_its_route() -> None:
    fleet = fleet_of(it.vllm(), it.NIM, it.NIM, it.OTHER)
    assert fleet["routes"]["llama-3.1-8b-instruct"] == {
        "match": {"path_prefix": "/v1/", "model": [LLAMA]},
        "split": {"llama-3.1-8b-instruct": 1, "llama-3.1-8b-instruct-2": 2},
    }


def test_models_of_openai_servers_are_told_apart_by_the_body_and_listed_together() -> None:
    fleet = fleet_of(it.vllm("acme/a", "a-alias"), it.sglang("acme/b"))
    routes = fleet["routes"]
    assert routes["a"] == {"match": {"path_prefix": "/v1/", "model": ["a-alias", "acme/a"]}, "pool": "a"}
    assert routes["b"] == {"match": {"path_prefix": "/v1/", "model": ["acme/b"]}, "pool": "b"}
    listed = yaml.safe_load(routes["models"]["respond"]["body"])
    assert [item["id"] for item in listed["data"]] == ["a-alias", "acme/a", "acme/b"]


def test_models_of_v2_servers_are_told_apart_by_the_path_and_a_shared_one_is_shared() -> None:
    fleet = fleet_of(it.v2("triton", "a", "both"), it.v2("mlserver", "b", "both"))
    routes = {item["match"]["path_prefix"]: item for item in fleet["routes"].values()}
    assert routes["/v2/models/a/"]["pool"] == "a"
    assert routes["/v2/models/b/"]["pool"] == "b"
    assert routes["/v2/models/both/"]["split"] == {"a": 1, "b": 1}


def test_servers_whose_models_are_unknown_stay_apart_and_get_paths_of_their_own() -> None:
    locked = {key: value for key, value in it.vllm().items() if key != "/v1/models"}
    fleet = fleet_of({**locked, "/v1/models": (401, '{"error": "Unauthorized"}')}, locked)
    assert [item["match"] for item in fleet["routes"].values()] == [
        {"path_prefix": "/vllm/"},
        {"path_prefix": "/vllm-2/"},
    ]
    assert all(item["rewrite"] == {"path_prefix": "/"} for item in fleet["routes"].values())


def test_a_server_that_wants_a_key_gets_it_and_its_models_are_known(tmp_path: Path, capsys: Output) -> None:
    key, wanted = tmp_path / "key", "Bearer sk-of-the-servers"
    open_to_all, closed = it.answering(it.vllm()), it.answering({**it.vllm(), "/v1/models": (401, "{}")})

    async def guarded(request: web.Request) -> web.StreamResponse:
        return await (open_to_all if request.headers.get("authorization") == wanted else closed)(request)

    key.write_text("sk-of-the-servers\n")
    with it.serving(guarded) as (server,):
        assert run(["init", "--api-key-file", str(key), "--from", server.url]) == 0
        out, err = capsys.readouterr()
        assert "vLLM, 1 model\n" in err
        assert "sk-of-the-servers" not in out + err
        assert "The servers ask for a key." in out
        assert run(["init", "--from", server.url]) == 0
        assert "vLLM, models unknown: it wants a key, which --api-key-file gives\n" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"two words\n", b"\xff\n"])
def test_a_key_file_without_a_key_is_a_mistake(tmp_path: Path, content: bytes, capsys: Output) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    assert run(["init", "--api-key-file", str(file), "--from", "http://127.0.0.1:9"]) == 64
    assert run(["init", "--api-key-file", f"{file}.none", "--from", "http://127.0.0.1:9"]) == 64
    assert "two" not in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--api-key-file", "key"), ("--proxy", "nginx")])
def test_what_is_for_servers_needs_servers(option: tuple[str, str], capsys: Output) -> None:
    assert run(["init", *option]) == 64
    assert "give --from" in capsys.readouterr().err


def test_a_proxy_that_would_not_serve_the_fleet_is_an_error_and_nothing_is_written(
    tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "fleet.yaml"
    with it.serving(it.vllm(), it.sglang("qwen")) as servers:
        command = ["init", "-f", str(file), "--from", *[server.url for server in servers], "--proxy"]
        assert run([*command, "nginx"]) == 1
        err = capsys.readouterr().err
        assert "lbctl: Envoy expresses all of it\n" in err
        assert "lbctl: nginx does not suit: nginx reads the model from the header x-model alone" in err
        assert "\nerror LB971 routes." in err
        assert not file.exists()
        assert run([*command, "haproxy"]) == 0


def test_proxies_of_one_ray_cluster_are_one_pool_and_unlike_clusters_are_not() -> None:
    routes = {"/-/routes": {"/rank": "ranker", "/embed": "embedder"}}
    fleet = fleet_of(routes, routes)
    assert [item["match"]["path_prefix"] for item in fleet["routes"].values()] == ["/embed", "/rank"]
    assert len(fleet["pools"]["ray-serve"]["replicas"]) == 2
    assert len(fleet_of(routes, {"/-/routes": {"/rank": "other"}})["pools"]) == 2


def test_torchserve_tells_its_models_on_the_port_for_management() -> None:
    assert pool_of(it.TORCHSERVE, it.MANAGEMENT)["model"] == {"name": "densenet161"}


def test_a_gpu_exporter_of_the_host_names_the_gpus() -> None:
    with serving(it.vllm(), it.DCGM) as (server, exporter):
        pool = yaml.safe_load(text := _written([server.url, exporter.url]))["pools"]["llama-3.1-8b-instruct"]
    assert not findings(text)
    assert pool["replicas"][0]["gpu"] == "A100-80GB"
    assert pool["replicas"][0]["gpu_count"] == 3
    assert pool["telemetry"]["sources"][1]["url"] == f"http://{{host}}:{exporter.url.rpartition(':')[2]}/metrics"


def test_servers_that_share_a_hosts_gpus_get_the_question_which_is_whose() -> None:
    with serving(it.vllm(), it.vllm(), it.DCGM) as there:
        text = _written(item.url for item in there)
    assert not findings(text)
    assert text.count("lbctl: ignore LB617") == 1
    assert "gpu_count:" not in text.split("pools:\n")[1]


def test_a_triton_page_of_the_host_is_its_source() -> None:
    with serving(it.v2("triton", "a"), {"/metrics": it.metrics("triton")}) as (server, page):
        text = _written([server.url, page.url])
    assert f"http://{{host}}:{page.url.rpartition(':')[2]}/metrics" in text
    assert ":8002" not in text


def test_the_listener_takes_a_port_that_no_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(it.llamacpp()) as (server,):
        port = int(server.url.rpartition(":")[2])
        monkeypatch.setattr("lbctl.init.fleet.FIRST_PORT", port)
        assert f'bind: "127.0.0.1:{port + 1}"' in _written([server.url])


def test_the_page_shows_what_init_says(capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of the page are loopback addresses here; their ports are those that the system gave."""
    monkeypatch.chdir(tmp_path)
    (block,) = [item for item in blocks("docs/init.md") if "by" in item.words]
    ((command, *shown),) = [[item.text, *item.printed] for item in block.commands]
    with serving(it.vllm(), it.DCGM) as one, serving(it.vllm(), it.DCGM, host="127.0.0.2") as two:
        for told, asked in zip(("gpu1:8000", "gpu1:9400", "gpu2:8000", "gpu2:9400"), (*one, *two), strict=True):
            command = command.replace(f"http://{told}", asked.url)
            shown = [line.replace(f"http://{told}", asked.url) for line in shown]
        assert run(command.split()[1:]) == 0
    assert capsys.readouterr().err.splitlines() == shown


def test_every_kind_stands_on_the_page() -> None:
    from lbctl.init import kinds

    page = (ROOT / "docs" / "init.md").read_text(encoding="utf-8")
    cells = {cell.strip() for line in page.splitlines() for cell in re.split(r"[|,]", line)}
    assert {item.title for item in vars(kinds).values() if isinstance(item, kinds.ServerKind)} <= cells


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_the_three_proxies_accept_a_fleet_of_every_kind(
    kind: Kind, everything: str, tmp_path: Path, capsys: Output
) -> None:
    require(kind)
    file = tmp_path / "fleet.yaml"
    file.write_text(everything, encoding="utf-8")
    code = run(["render", "-t", kind, "--check", "-d", str(tmp_path / "out"), str(file)])
    said = capsys.readouterr().err
    assert code == 0, said
    assert ": error " not in said


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_the_three_proxies_accept_the_file_that_is_made_of_nothing(kind: Kind, tmp_path: Path, capsys: Output) -> None:
    require(kind)
    file = tmp_path / "fleet.yaml"
    assert run(["init", "-f", str(file)]) == 0
    assert run(["render", "-t", kind, "--check", "-d", str(tmp_path / "out"), str(file)]) == 0
    assert ": error " not in capsys.readouterr().err


def test_a_fleet_of_every_kind_has_no_findings(everything: str) -> None:
    assert not findings(everything)
    assert len(yaml.safe_load(everything)["pools"]) == 10


def test_the_file_of_nothing_is_short_explained_and_without_findings(capsys: Output) -> None:
    assert run(["init"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# yaml-language-server: $schema=./lbctl.schema.json\n")
    assert "for caches: pick" in text
    assert 50 <= len(text.splitlines()) <= 90
    assert not findings(text)
    assert not re.search(r"\b(?!127\.)\d+\.\d+\.\d+\.\d+:", text.replace("0.0.0.0", ""))
