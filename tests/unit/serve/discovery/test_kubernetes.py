"""The watch of EndpointSlices against an API server: what is followed, and what no failure takes away."""

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
from lbctl.serve.discovery.kubernetes import KubernetesSource
from lbctl.serve.guard import Guard
from tests.support.kubernetes import NODES, SLICES, ApiServer, endpoint, serving_api
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
        """Replica → its address, with `drained` behind it; None without an answer."""
        replicas = self.source.answers()[pool].replicas
        if replicas is None:
            return None
        return {item.name: f"{item.address}{' drained' if item.drain else ''}" for item in replicas}

    @property
    def error(self) -> str:
        return self.source.names()[0].error

    async def until(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)


def follow(
    api: ApiServer, tmp_path: Path, work: Callable[[Watching], Awaitable[None]], saved: Any = None, **section: Any
) -> None:
    """Runs `work` with a source that follows the service ml/vllm with these keys of the section."""
    file = section.pop("file", None) or api.kubeconfig(tmp_path / "config")
    discovery = KubernetesDiscovery("ml", "vllm", "http", kubeconfig="config", kubeconfig_file=str(file), **section)

    async def whole() -> None:
        watching = Watching(KubernetesSource(lambda: watching.changes.append(None), Guard()))
        watching.source.seed(saved or {})
        watching.source.follow(Topology((), (), (Pool("llama", discovery=discovery),)))
        try:
            await watching.source.first(5)
            await work(watching)
        finally:
            await watching.source.stop()

    asyncio.run(asyncio.wait_for(whole(), 120))


def pods(*numbers: int, **states: str) -> list[dict[str, Any]]:
    return [endpoint(f"p{i}", f"10.0.0.{i}", state=states.get(f"p{i}", "ready")) for i in numbers]


def test_endpoints_come_drain_and_go(api: ApiServer, tmp_path: Path) -> None:
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

    follow(api, tmp_path, work)


def test_an_answer_that_has_not_changed_is_the_same_tuple(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        before, changes = watching.source.answers()["llama"].replicas, len(watching.changes)
        api.put_slice("ml", "vllm", pods(1), annotations={"x": "y"})
        await watching.until(lambda: len(watching.changes) > changes)
        assert watching.source.answers()["llama"].replicas is before

    follow(api, tmp_path, work)


def test_a_list_of_several_pages_is_one_answer(api: ApiServer, tmp_path: Path) -> None:
    api.page = 2
    for number in range(1, 6):
        api.put_slice("ml", "vllm", pods(number), name=f"vllm-{number}")

    async def work(watching: Watching) -> None:
        assert len(watching.members() or ()) == 5
        assert api.asked("continue=") == 2

    follow(api, tmp_path, work)


@pytest.mark.parametrize("trouble", ["expire", "error", "drop"])
def test_after_an_expired_version_an_error_and_a_lost_connection_nothing_is_missed(
    api: ApiServer, tmp_path: Path, trouble: str
) -> None:
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

    follow(api, tmp_path, work)


def test_a_bookmark_moves_the_version_from_which_a_watch_goes_on(api: ApiServer, tmp_path: Path) -> None:
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

    follow(api, tmp_path, work)


def test_what_is_served_stays_while_the_api_server_is_away(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1, 2))

    async def work(watching: Watching) -> None:
        api.away()
        await watching.until(lambda: watching.error)
        assert len(watching.members() or ()) == 2
        api.back()
        api.put_slice("ml", "vllm", pods(1, 2, 3))
        await watching.until(lambda: len(watching.members() or ()) == 3)
        assert watching.error == ""

    follow(api, tmp_path, work)


def test_a_start_without_the_api_server_uses_what_was_saved(api: ApiServer, tmp_path: Path) -> None:
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

    follow(api, tmp_path, first, **section)
    assert saved["replicas"][0].gpu == "L4"
    api.away()
    follow(api, tmp_path, second, saved={key: value for key, value in saved.items() if key != "replicas"}, **section)


def test_labels_that_cannot_be_listed_after_a_start_take_no_capacity_and_no_zone(
    api: ApiServer, tmp_path: Path
) -> None:
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

    follow(api, tmp_path, first, **section)
    api.forbidden = {"nodes"}
    follow(api, tmp_path, second, saved=saved, **section)
    api.forbidden = {"nodes"}
    follow(api, tmp_path, third, saved=saved, **section)


def test_a_gpu_that_the_fleet_no_longer_knows_is_not_kept(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))
    api.forbidden = {"nodes"}

    async def work(watching: Watching) -> None:
        await watching.until(lambda: "no label" in watching.error)
        assert (watching.source.answers()["llama"].replicas or ())[0].capacity == 1.0

    saved = {
        "kubernetes:config::ml/vllm:http": ['{"name":"p1","host":"10.0.0.1","port":8000,"gpu":"own","capacity":9}']
    }
    follow(api, tmp_path, work, saved=saved, gpu_from=LabelSource("node", "gpu"))


def test_a_service_without_slices_removes_nothing_and_is_reported(api: ApiServer, tmp_path: Path) -> None:
    async def work(watching: Watching) -> None:
        assert watching.members() is None
        assert watching.error == "the service has no EndpointSlice: does it exist?"
        api.put_slice("ml", "vllm", pods(1))
        await watching.until(lambda: watching.members())
        api.delete(COLLECTION, "vllm-abcde")
        await watching.until(lambda: watching.error)
        assert watching.members() == {"p1": "10.0.0.1:8000"}

    follow(api, tmp_path, work)


def test_a_service_that_is_scaled_to_nothing_has_no_replica(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        api.put_slice("ml", "vllm", pods(1, p1="ended"))
        await watching.until(lambda: watching.members() == {})
        assert watching.source.answers()["llama"].leaving == {"p1"}

    follow(api, tmp_path, work)


def test_a_token_that_rotates_is_read_again(api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        follow(api, tmp_path, work, file=file)
    assert "secret" not in caplog.text


def test_what_rbac_forbids_is_named_and_the_rest_works(api: ApiServer, tmp_path: Path) -> None:
    api.put_slice("ml", "vllm", pods(1))
    api.forbidden = {"nodes"}

    async def work(watching: Watching) -> None:
        assert watching.members() == {"p1": "10.0.0.1:8000"}
        assert "RBAC: give get, list and watch of nodes" in watching.error
        assert "no label" in watching.error

    follow(api, tmp_path, work, gpu_from=LabelSource("node", "gpu"))


def test_a_label_that_changes_changes_the_capacity(api: ApiServer, tmp_path: Path) -> None:
    api.put(NODES, "n", {"metadata": {"labels": {"gpu": "NVIDIA-L4"}}, "status": {"much": "more"}})
    api.put_slice("ml", "vllm", [endpoint("p1", "10.0.0.1", nodeName="n")])

    async def work(watching: Watching) -> None:
        def capacity() -> float:
            return (watching.source.answers()["llama"].replicas or ())[0].capacity

        assert capacity() == 0.8
        api.put(NODES, "n", {"metadata": {"labels": {"gpu": "NVIDIA-L40S"}}})
        await watching.until(lambda: capacity() == 2.7)

    follow(api, tmp_path, work, gpu_from=LabelSource("node", "gpu"))


def test_a_kubeconfig_that_is_wrong_is_named_and_read_again_once_it_is_right(api: ApiServer, tmp_path: Path) -> None:
    file = api.kubeconfig(tmp_path / "config")
    right = file.read_text()
    file.write_text(right.replace("current-context: c", "current-context: d"))
    api.put_slice("ml", "vllm", pods(1))

    async def work(watching: Watching) -> None:
        assert watching.error == f"{file}:11:18: there is no context 'd' (known: c)"
        file.write_text(right)
        await watching.until(lambda: watching.members())

    follow(api, tmp_path, work, file=file)


def test_the_server_is_reached_by_tls_with_a_client_certificate(tmp_path: Path) -> None:
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
            assert "its certificate is not trusted" in watching.error

        trusting = api.kubeconfig(tmp_path / "config", user, **{"certificate-authority": str(authority.ca)})
        follow(api, tmp_path, trusted, file=trusting)
        follow(api, tmp_path, not_trusted, file=api.kubeconfig(tmp_path / "other", user))
