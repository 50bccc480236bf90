"""The watches of an API server: changes are followed, and failures remove no replicas."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.pools import KubernetesDiscovery, LabelSource, Pool
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery.kubernetes import KubernetesSource
from tests.support.kubernetes import (
    INFERENCE_POOLS,
    NODES,
    PODS,
    SLICES,
    ApiServer,
    endpoint,
    inference_pool,
    pod,
    serving_api,
)
from tests.support.processes.certs import Authority

COLLECTION = SLICES.format("ml")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with serving_api() as server:
        yield server


@dataclass
class Watching:
    """A source that follows one pool."""

    source: KubernetesSource
    changes: list[None] = field(default_factory=list)

    def members(self, pool: str = "llama") -> dict[str, str] | None:
        """Return the address of each replica, followed by `drained` if it is; None without an answer."""
        replicas = self.source.answers()[pool].replicas
        if replicas is None:
            return None
        return {item.name: f"{item.address}{' drained' if item.drain else ''}" for item in replicas}

    @property
    def error(self) -> str:
        return self.source.names()[0].error

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)


def run_source(
    api: ApiServer, tmp_path: Path, work: Callable[[Watching], Awaitable[None]], saved: Any = None, **section: Any
) -> None:
    """Run `work` with a source that follows the service ml/vllm, or an InferencePool, with these keys."""
    file = section.pop("file", None) or api.kubeconfig(tmp_path / "config")
    service = ("ml", "") if "inference_pool" in section else ("ml", "vllm", "http")
    discovery = KubernetesDiscovery(*service, kubeconfig="config", kubeconfig_file=str(file), **section)

    async def run() -> None:
        watching = Watching(KubernetesSource(lambda: watching.changes.append(None), Guard()))
        watching.source.seed(saved or {})
        watching.source.use_topology(Topology((), (), (Pool("llama", discovery=discovery),)))
        try:
            await watching.source.first(60)
            await work(watching)
        finally:
            await watching.source.stop()

    asyncio.run(asyncio.wait_for(run(), 120))


def pods(*numbers: int, **states: str) -> list[dict[str, Any]]:
    return [endpoint(f"p{i}", f"10.0.0.{i}", state=states.get(f"p{i}", "ready")) for i in numbers]


def test_endpoints_are_added_drained_and_removed(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1, 2))
    api.put_slice("ml", "other", pods(9))

    async def work(watching: Watching) -> None:
        assert watching.members() == {"p1": "10.0.0.1:8000", "p2": "10.0.0.2:8000"}
        api.put_slice("ml", "vllm", pods(1, 2, p2="terminating"))
        api.put_slice("ml", "vllm", pods(3), name="vllm-second")
        await watching.until(lambda: len(watching.members() or ()) == 3)
        assert watching.members() == {"p1": "10.0.0.1:8000", "p2": "10.0.0.2:8000 drained", "p3": "10.0.0.3:8000"}
        api.delete(COLLECTION, "vllm-second")
        api.put_slice("ml", "vllm", pods(1))
        await watching.until(lambda: watching.members() == {"p1": "10.0.0.1:8000"})
        assert watching.source.answers()["llama"].leaving == {"p2"}
        assert api.asked("watch=1") == 1
        assert api.asked("limit=") == 1

    run_source(api, tmp_path, work)


def test_unchanged_answer_is_the_same_tuple(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        before, changes = watching.source.answers()["llama"].replicas, len(watching.changes)
        api.put_slice("ml", "vllm", pods(1), annotations={"x": "y"})
        await watching.until(lambda: len(watching.changes) > changes)
        assert watching.source.answers()["llama"].replicas is before

    run_source(api, tmp_path, work)


def test_paginated_list_is_one_answer(api: ApiServer, tmp_path: Path) -> None:
    api.page = 2
    for number in range(1, 6):
        api.put_slice("ml", "vllm", pods(number), name=f"vllm-{number}")

    async def work(watching: Watching) -> None:
        assert len(watching.members() or ()) == 5
        assert api.asked("continue=") == 2

    run_source(api, tmp_path, work)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["expire", "error", "drop"])
def test_no_change_is_missed_after_a_failed_watch(api: ApiServer, tmp_path: Path, trouble: str) -> None:
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        await watching.until(lambda: api.asked("watch=1") == 1)
        getattr(api, trouble)()
        if trouble == "expire":
            api.drop()
        api.put_slice("ml", "vllm", pods(1, 2))
        await watching.until(lambda: len(watching.members() or ()) == 2)
        assert api.asked("limit=") == (1 if trouble == "drop" else 2)  # a lost connection needs no new list
        await watching.until(lambda: watching.error == "")

    run_source(api, tmp_path, work)


def test_watch_resumes_from_the_version_of_a_bookmark(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        answered = watching.source.names()[0].answered
        await watching.until(lambda: api.asked("watch=1") == 1)
        api.bookmark()
        await watching.until(lambda: watching.source.names()[0].answered != answered)
        await asyncio.sleep(0.05)
        api.drop()
        await watching.until(lambda: api.asked("watch=1") == 2)
        assert "resourceVersion=102" in next(item for item in reversed(api.requests) if "watch=1" in item)

    run_source(api, tmp_path, work)


def test_replicas_stay_while_the_api_server_is_down(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1, 2))

    async def work(watching: Watching) -> None:
        api.away()
        await watching.until(lambda: watching.error)
        assert len(watching.members() or ()) == 2
        api.back()
        api.put_slice("ml", "vllm", pods(1, 2, 3))
        await watching.until(lambda: len(watching.members() or ()) == 3)
        assert watching.error == ""

    run_source(api, tmp_path, work)


def test_start_without_the_api_server_uses_saved_replicas(api: ApiServer, tmp_path: Path) -> None:
    section = {"gpu_from": LabelSource("node", "gpu"), "zone_from": "endpoint"}
    api.put(NODES, "n", {"metadata": {"labels": {"gpu": "NVIDIA-L4"}}})
    api.put_slice("ml", "vllm", [endpoint("p1", "10.0.0.1", nodeName="n", zone="a"), *pods(2, p2="terminating")])
    saved: dict[str, Any] = {}

    async def first(watching: Watching) -> None:
        answer = watching.source.answers()["llama"]
        saved[answer.key] = answer.saved
        saved["replicas"] = answer.replicas

    async def second(watching: Watching) -> None:
        assert watching.source.answers()["llama"].replicas == saved["replicas"]

    run_source(api, tmp_path, first, **section)
    assert saved["replicas"][0].gpu == "L4"
    api.away()
    run_source(
        api, tmp_path, second, saved={key: value for key, value in saved.items() if key != "replicas"}, **section
    )


def test_saved_capacity_and_zone_stay_without_access_to_labels(api: ApiServer, tmp_path: Path) -> None:
    section = {"gpu_from": LabelSource("node", "gpu"), "zone_from": LabelSource("node", "zone")}
    for node, gpu in (("n1", "NVIDIA-L4"), ("n2", "NVIDIA-L40S")):
        api.put(NODES, node, {"metadata": {"labels": {"gpu": gpu, "zone": f"of-{node}"}}})
    members = [endpoint(f"p{i}", f"10.0.0.{i}", nodeName=f"n{i}") for i in (1, 2)]
    api.put_slice("ml", "vllm", members)
    saved: dict[str, Any] = {}

    def places(watching: Watching) -> dict[str, tuple[float, str | None]]:
        return {item.name: (item.capacity, item.zone) for item in watching.source.answers()["llama"].replicas or ()}

    def save(watching: Watching) -> None:
        answer = watching.source.answers()["llama"]
        saved[answer.key] = answer.saved

    async def first(watching: Watching) -> None:
        save(watching)

    async def second(watching: Watching) -> None:
        await watching.until(lambda: "RBAC" in watching.error)
        assert places(watching) == {"p1": (0.8, "of-n1"), "p2": (2.7, "of-n2")}
        assert "no label" not in watching.error
        api.put_slice("ml", "vllm", [*members[1:], endpoint("p3", "10.0.0.3", nodeName="n1")])
        await watching.until(lambda: "p3" in places(watching))
        assert places(watching) == {"p2": (2.7, "of-n2"), "p3": (2.7, None)}  # until its label is known
        save(watching)
        api.forbidden.clear()
        await watching.until(lambda: places(watching) == {"p2": (2.7, "of-n2"), "p3": (0.8, "of-n1")})

    async def third(watching: Watching) -> None:
        assert places(watching)["p2"] == (2.7, "of-n2")

    run_source(api, tmp_path, first, **section)
    api.forbidden = {"nodes"}
    run_source(api, tmp_path, second, saved=saved, **section)
    api.forbidden = {"nodes"}
    run_source(api, tmp_path, third, saved=saved, **section)


def test_saved_gpu_that_the_fleet_dropped_is_not_used(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))
    api.forbidden = {"nodes"}

    async def work(watching: Watching) -> None:
        await watching.until(lambda: "no label" in watching.error)
        assert (watching.source.answers()["llama"].replicas or ())[0].capacity == 1.0

    saved = {
        "kubernetes:config::ml/vllm:http": ['{"name":"p1","host":"10.0.0.1","port":8000,"gpu":"own","capacity":9}']
    }
    run_source(api, tmp_path, work, saved=saved, gpu_from=LabelSource("node", "gpu"))


def test_service_without_slices_is_reported_and_removes_nothing(api: ApiServer, tmp_path: Path) -> None:
    async def work(watching: Watching) -> None:
        assert watching.members() is None
        assert watching.error == "the service has no EndpointSlice: does it exist?"
        api.put_slice("ml", "vllm", pods(1))
        await watching.until(lambda: watching.members())
        api.delete(COLLECTION, "vllm-abcde")
        await watching.until(lambda: watching.error)
        assert watching.members() == {"p1": "10.0.0.1:8000"}

    run_source(api, tmp_path, work)


def test_service_scaled_to_zero_has_no_replicas(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        api.put_slice("ml", "vllm", pods(1, p1="ended"))
        await watching.until(lambda: watching.members() == {})
        assert watching.source.answers()["llama"].leaving == {"p1"}

    run_source(api, tmp_path, work)


def test_rotated_token_is_read_again(api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api.put_slice("ml", "vllm", pods(1))
    token = tmp_path / "token"
    token.write_text("good\n")
    file = api.kubeconfig(tmp_path / "config", {"tokenFile": "token"})

    async def work(watching: Watching) -> None:
        assert watching.members()
        api.tokens = {"fresh-and-secret"}
        api.drop()
        await watching.until(lambda: "401" in watching.error)
        token.write_text("fresh-and-secret\n")
        api.put_slice("ml", "vllm", pods(1, 2))
        await watching.until(lambda: len(watching.members() or ()) == 2)

    with caplog.at_level(logging.DEBUG):
        run_source(api, tmp_path, work, file=file)
    assert "secret" not in caplog.text


def test_resources_forbidden_by_rbac_are_reported(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))
    api.forbidden = {"nodes"}

    async def work(watching: Watching) -> None:
        assert watching.members() == {"p1": "10.0.0.1:8000"}
        await watching.until(lambda: "RBAC: grant get, list and watch on nodes" in watching.error)
        await watching.until(lambda: "no label" in watching.error)

    run_source(api, tmp_path, work, gpu_from=LabelSource("node", "gpu"))


def test_changed_label_changes_the_capacity(api: ApiServer, tmp_path: Path) -> None:
    api.put(NODES, "n", {"metadata": {"labels": {"gpu": "NVIDIA-L4"}}, "status": {"much": "more"}})
    api.put_slice("ml", "vllm", [endpoint("p1", "10.0.0.1", nodeName="n")])

    async def work(watching: Watching) -> None:
        def capacity() -> float:
            return (watching.source.answers()["llama"].replicas or ())[0].capacity

        assert capacity() == 0.8
        api.put(NODES, "n", {"metadata": {"labels": {"gpu": "NVIDIA-L40S"}}})
        await watching.until(lambda: capacity() == 2.7)

    run_source(api, tmp_path, work, gpu_from=LabelSource("node", "gpu"))


def test_wrong_kubeconfig_is_reported_and_read_again(api: ApiServer, tmp_path: Path) -> None:
    file = api.kubeconfig(tmp_path / "config")
    right = file.read_text()
    file.write_text(right.replace("current-context: c", "current-context: d"))
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        assert watching.error == f"{file}:11:18: unknown context 'd' (known: c)"
        file.write_text(right)
        await watching.until(lambda: watching.members())

    run_source(api, tmp_path, work, file=file)


def test_api_server_is_reached_by_tls_with_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, robot = authority.issue("api", ["127.0.0.1"]), authority.issue("robot")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(server.certificate, server.key)
    user = {"client-certificate": str(robot.certificate), "client-key": str(robot.key), "tokenFile": "token"}
    (tmp_path / "token").write_text("good")
    with serving_api(tls) as api:
        api.put_slice("ml", "vllm", pods(1))

        async def trusted(watching: Watching) -> None:
            assert watching.members() == {"p1": "10.0.0.1:8000"}

        async def not_trusted(watching: Watching) -> None:
            await watching.until(lambda: "its certificate is not trusted" in watching.error)

        trusting = api.kubeconfig(tmp_path / "config", user, **{"certificate-authority": str(authority.ca)})
        run_source(api, tmp_path, trusted, file=trusting)
        run_source(api, tmp_path, not_trusted, file=api.kubeconfig(tmp_path / "other", user))


# ── InferencePools ────────────────────────────────────────────────────────────────────────────────────────────────────

POOLS, POD_COLLECTION = INFERENCE_POOLS.format("ml"), PODS.format("ml")


def test_pods_of_an_inference_pool_are_followed(api: ApiServer, tmp_path: Path) -> None:
    api.put(POOLS, "llama", inference_pool(8000))
    api.put(POD_COLLECTION, "p1", pod("10.0.0.1"))
    api.put(POD_COLLECTION, "p2", pod("10.0.0.2", state="unready"))
    api.put(POD_COLLECTION, "other", pod("10.0.0.9", labels={"app": "other"}))

    async def work(watching: Watching) -> None:
        assert watching.members() == {"p1": "10.0.0.1:8000"}
        assert watching.source.names()[0].name == "kubernetes ml/inferencepool/llama"
        api.put(POD_COLLECTION, "p2", pod("10.0.0.2"))
        api.put(POD_COLLECTION, "p1", pod("10.0.0.1", state="terminating"))
        await watching.until(lambda: watching.members() == {"p1": "10.0.0.1:8000 drained", "p2": "10.0.0.2:8000"})
        api.delete(POD_COLLECTION, "p1")
        await watching.until(lambda: watching.members() == {"p2": "10.0.0.2:8000"})
        assert watching.source.answers()["llama"].leaving == {"p1"}
        assert api.asked("watch=1") == 2
        assert not [item for item in api.requests if "/pods" in item and "labelSelector=app%3Dvllm" not in item]

    run_source(api, tmp_path, work, inference_pool="llama")


def test_changes_of_an_inference_pool_are_followed(api: ApiServer, tmp_path: Path) -> None:
    api.put(POOLS, "llama", inference_pool(8000))
    api.put(POD_COLLECTION, "p1", pod("10.0.0.1"))
    api.put(POD_COLLECTION, "q1", pod("10.0.0.2", labels={"app": "sglang", "tier": "gold"}))

    async def work(watching: Watching) -> None:
        api.put(POOLS, "llama", inference_pool(8000, 8001))
        await watching.until(lambda: watching.members() == {"p1-8000": "10.0.0.1:8000", "p1-8001": "10.0.0.1:8001"})
        api.put(POOLS, "llama", inference_pool(30000, app="sglang", tier="gold"))
        await watching.until(lambda: watching.members() == {"q1": "10.0.0.2:30000"})
        api.put(POD_COLLECTION, "p1", pod("10.0.0.1", labels={"app": "sglang", "tier": "gold"}))
        await watching.until(lambda: len(watching.members() or ()) == 2)

    run_source(api, tmp_path, work, inference_pool="llama")


def test_missing_inference_pool_removes_no_replica(api: ApiServer, tmp_path: Path) -> None:
    api.put(POD_COLLECTION, "p1", pod("10.0.0.1"))

    async def work(watching: Watching) -> None:
        assert watching.members() is None
        assert watching.error == "the InferencePool does not exist"
        assert not api.asked("/pods")
        api.put(POOLS, "llama", inference_pool(8000))
        await watching.until(lambda: watching.members() == {"p1": "10.0.0.1:8000"})
        assert watching.error == ""
        api.put(POOLS, "llama", inference_pool())
        await watching.until(lambda: watching.error == "the InferencePool has no selector or no target port")
        api.delete(POOLS, "llama")
        await watching.until(lambda: watching.error == "the InferencePool does not exist")
        api.put(POD_COLLECTION, "p2", pod("10.0.0.2"))
        await watching.until(lambda: len(watching.members() or ()) == 2)

    run_source(api, tmp_path, work, inference_pool="llama")


def test_inference_pool_without_pods_is_reported(api: ApiServer, tmp_path: Path) -> None:
    api.put(POOLS, "llama", inference_pool(8000))
    api.put(POD_COLLECTION, "other", pod("10.0.0.9", labels={"app": "other"}))

    async def work(watching: Watching) -> None:
        assert watching.members() == {}
        assert watching.error == "no pod has the labels app=vllm"
        api.put(POD_COLLECTION, "p1", pod("10.0.0.1", state="unready"))
        await watching.until(lambda: watching.error == "")

    run_source(api, tmp_path, work, inference_pool="llama")


def test_terminated_pods_of_all_ports_are_leaving(api: ApiServer, tmp_path: Path) -> None:
    long = "long-" * 12 + "pod"
    api.put(POOLS, "llama", inference_pool(8000, 8001))
    for name, address in (("p1", "10.0.0.1"), (long, "10.0.0.2")):
        api.put(POD_COLLECTION, name, pod(address))

    async def work(watching: Watching) -> None:
        names = set(watching.members() or ())
        assert names == {"p1-8000", "p1-8001", "10.0.0.2-8000", "10.0.0.2-8001"}
        for name, address in (("p1", "10.0.0.1"), (long, "10.0.0.2")):
            api.put(POD_COLLECTION, name, pod(address, state="ended"))
            api.delete(POD_COLLECTION, name)
        await watching.until(lambda: watching.members() == {})
        assert watching.source.answers()["llama"].leaving == names

    run_source(api, tmp_path, work, inference_pool="llama")


def test_gpus_of_an_inference_pool_come_from_pod_labels(api: ApiServer, tmp_path: Path) -> None:
    api.put(POOLS, "llama", inference_pool(8000))
    api.put(POD_COLLECTION, "p1", pod("10.0.0.1", labels={"app": "vllm", "gpu": "L4"}))
    api.put(NODES, "n1", {"metadata": {"labels": {"zone": "a"}}})

    async def work(watching: Watching) -> None:
        await watching.until(lambda: watching.members())
        (replica,) = watching.source.answers()["llama"].replicas or ()
        assert (replica.gpu, replica.zone) == ("L4", "a")
        assert api.asked("/pods?limit=") == 1

    sources = {"gpu_from": LabelSource("pod", "gpu"), "zone_from": LabelSource("node", "zone")}
    run_source(api, tmp_path, work, inference_pool="llama", **sources)


def test_cluster_without_inference_pools_is_reported(api: ApiServer, tmp_path: Path) -> None:
    api.unknown = {"inferencepools"}

    async def work(watching: Watching) -> None:
        reason = "(the cluster does not have inferencepools of the API inference.networking.k8s.io/v1)"
        assert watching.error.endswith(reason)

    run_source(api, tmp_path, work, inference_pool="llama")


def test_start_without_the_api_server_uses_saved_pods(api: ApiServer, tmp_path: Path) -> None:
    api.put(POOLS, "llama", inference_pool(8000))
    api.put(POD_COLLECTION, "p1", pod("10.0.0.1"))
    saved: dict[str, Any] = {}

    async def first(watching: Watching) -> None:
        answer = watching.source.answers()["llama"]
        saved[answer.key] = answer.saved

    async def second(watching: Watching) -> None:
        assert watching.members() == {"p1": "10.0.0.1:8000"}

    run_source(api, tmp_path, first, inference_pool="llama")
    api.away()
    run_source(api, tmp_path, second, saved=saved, inference_pool="llama")
