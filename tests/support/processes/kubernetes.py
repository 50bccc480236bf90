"""A Deployment as Kubernetes' controllers run it: pods with separate addresses, whose states are in EndpointSlices.

A deleted pod first terminates, and continues to serve for `grace` seconds, like a pod with a `preStop` pause. Then its
process ends and it leaves the slice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lbctl.compile.allowed_files import allow
from tests.support.kubernetes import ApiServer, endpoint, serving_api
from tests.support.processes import edges
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import free_port
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import at_rest, eventually

NAMESPACE, SERVICE = "ml", "vllm"
_PER_SLICE = 100


class Deployment:
    """The pods of one service."""

    def __init__(self, api: ApiServer, directory: Path, grace: float, quiet: float) -> None:
        """Start no pods yet.

        `quiet`: seconds without a request for which a deleted pod waits after `grace` before it ends.
        """
        self.api = api
        self.grace = grace
        self._quiet = quiet
        self.port = free_port()
        self.pods: dict[str, Replica] = {}
        self.nodes: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._made = 0
        self._slices = 0
        self._crowd: list[Replica] = []
        self._kubeconfig = api.kubeconfig(directory / "kubeconfig")
        allow(self._kubeconfig)  # it is outside the fleet's directory

    def pool(self, **keys: Any) -> dict[str, Any]:
        """Return the pool that follows the deployment."""
        section = {"namespace": NAMESPACE, "service": SERVICE, "port": "http", "kubeconfig": str(self._kubeconfig)}
        return {
            "discovery": {"kubernetes": section},
            "balance": {"algorithm": "round_robin"},
            "slow_start": {"window": "1s", "min_weight": "100%"},
            **keys,
        }

    def start(self, count: int, node: str = "n1") -> list[str]:
        """Start `count` additional pods, all of them ready immediately, and return their names."""
        names = [f"vllm-{self._made + number}" for number in range(1, count + 1)]
        for name in names:
            self._made += 1
            host = f"127.1.{self._made >> 8}.{self._made & 255}"
            self.pods[name] = Replica(name, host=host, port=self.port)
            self.pods[name].__enter__()
            self.nodes[name], self._states[name] = node, "ready"
        self.publish()
        return names

    def terminate(self, names: Iterable[str]) -> None:
        """Mark pods as being deleted: they are drained, and their processes continue to serve."""
        self._states |= dict.fromkeys(names, "terminating")
        self.publish()

    def end(self, names: Iterable[str]) -> None:
        """End the processes of pods, which leave the slices."""
        for name in names:
            self.pods.pop(name).__exit__(None, None, None)
            del self._states[name]
        self.publish()

    def delete(self, names: Iterable[str]) -> None:
        """Delete pods, from the request until they are gone. On a busy machine, proxies need longer than `grace`."""
        names = list(names)
        self.terminate(names)
        time.sleep(self.grace)
        at_rest(lambda: sum(self.pods[name].requests for name in names), self._quiet)
        self.end(names)

    def scale(self, count: int) -> None:
        if count > len(self.pods):
            self.start(count - len(self.pods))
        else:
            self.delete(list(self.pods)[count:])

    def roll(self, at_once: int = 1) -> None:
        """Replace all pods, `at_once` at a time, the new ones first (`maxSurge`)."""
        old = list(self.pods)
        for place in range(0, len(old), at_once):
            self.start(len(old[place : place + at_once]))
            self.delete(old[place : place + at_once])

    def drain(self, node: str) -> None:
        """Move all pods of a node to another one."""
        gone = [name for name, where in self.nodes.items() if where == node and name in self.pods]
        self.start(len(gone), node="n2")
        self.delete(gone)

    @property
    def in_use(self) -> set[str]:
        """Return the pods that should get requests."""
        return {name for name, state in self._states.items() if state == "ready"}

    def crowd(self, count: int) -> None:
        """Publish a slice of `count` endpoints, all served by one process."""
        listener = Replica("crowd", host="0.0.0.0")
        listener.__enter__()
        self._crowd.append(listener)
        members = [endpoint(f"crowd-{number}", f"127.2.{number >> 8}.{number & 255}") for number in range(1, count + 1)]
        self.api.put_slice(NAMESPACE, SERVICE, members, name=f"{SERVICE}-crowd", port=listener.port)

    def publish(self) -> None:
        """Write the current slices."""
        names = list(self._states)
        pages = [names[place : place + _PER_SLICE] for place in range(0, len(names), _PER_SLICE)] or [[]]
        for number in range(max(len(pages), self._slices)):
            page = pages[number] if number < len(pages) else []
            members = [self._endpoint(name) for name in page]
            self.api.put_slice(NAMESPACE, SERVICE, members, name=f"{SERVICE}-{number}", port=self.port)
        self._slices = len(pages)

    def stop(self) -> None:
        for pod in [*self.pods.values(), *self._crowd]:
            pod.__exit__(None, None, None)

    def _endpoint(self, name: str) -> dict[str, Any]:
        return endpoint(name, self.pods[name].host, state=self._states[name], nodeName=self.nodes[name])


@contextmanager
def deployment(directory: Path, count: int, grace: float = 2.5, quiet: float = 1.0) -> Iterator[Deployment]:
    """Run an API server, and a Deployment with `count` pods."""
    with serving_api() as api:
        pods = Deployment(api, directory, grace, quiet)
        try:
            pods.start(count)
            yield pods
        finally:
            pods.stop()


@contextmanager
def three(pods: Deployment) -> Iterator[tuple[ControlPlane, dict[str, Client]]]:
    """Run an Envoy, a HAProxy and an nginx in front of these pods, and wait until all of them send requests there."""
    with ExitStack() as stack:
        haproxy, nginx = stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())
        sections = driven("envoy")
        for edge in (haproxy, nginx):
            sections = {name: {**section, **edge.sections[name]} for name, section in sections.items()}
        fleet = fleet_of(pods.pool(), **sections)
        del fleet["listeners"]["gateway"]
        for edge in (haproxy, nginx):
            stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("envoy", ["envoy"]))
        clients = {"envoy": envoy.client(), "haproxy": haproxy, "nginx": nginx}
        for client in clients.values():
            eventually(partial(_answers, client))
        yield control, clients


def _answers(client: Client) -> bool:
    return client.get().ok
