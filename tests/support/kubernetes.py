"""A Kubernetes API server for tests: lists, watches, bookmarks, expired versions, tokens, and the errors of each.

It responds like the real one, with which `tests/benchmarks/kubernetes_semantics.py` compares it. Objects are changed by
methods that return when they are stored; a watch sees them immediately. `away()` closes the port and all connections.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import web

from tests.support.processes.ports import HOST, free_port

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/{}/pods"
INFERENCE_POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"
_KINDS = {
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "inferencepools": ("inference.networking.k8s.io/v1", "InferencePool"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "configmaps": ("v1", "ConfigMap"),
    "nodes": ("v1", "Node"),
    "pods": ("v1", "Pod"),
}
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_T = TypeVar("_T")
Object = dict[str, Any]


class ApiServer:
    """The server; use `serving_api`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.port = free_port()
        self.tokens: set[str] = {"good"}
        self.forbidden: set[str] = set()
        """Resources that no client may read."""
        self.unknown: set[str] = set()
        """Resources whose API the cluster does not have."""
        self.requests: list[str] = []
        """Method, path and query of each request, in order."""
        self.page = 500
        """Maximum number of objects in one page of a list, whatever the request asks for."""
        self._objects: dict[str, dict[str, Object]] = {}
        self._version = 100
        self._events: list[tuple[int, str, str, Object, Object | None]] = []
        self._oldest = 0
        self._continues: dict[str, tuple[str, list[Object], int]] = {}
        self._changed = asyncio.Condition()
        self._errors: dict[int, Object] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    # ── Its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._thread.start()
        self.back()

    def stop(self) -> None:
        self.away()
        self._run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def away(self) -> None:
        """Close the port and every connection."""
        self._run(self._close())

    def back(self) -> None:
        """Reopen the port."""
        self._run(self._open())

    # ── Its objects ──────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, collection: str, name: str, value: Object) -> None:
        """Create or replace an object."""
        self._run(self._store(collection, name, value))

    def delete(self, collection: str, name: str) -> None:
        self._run(self._store(collection, name, None))

    def put_slice(self, namespace: str, service: str, endpoints: Iterable[Object], name: str = "", **more: Any) -> None:
        """Create or replace a slice of a service, with one port `http`, which is 8000 unless `port` is given."""
        port = more.pop("port", 8000)
        name = name or f"{service}-abcde"
        value = {
            "metadata": {"labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            "endpoints": list(endpoints),
            **more,
        }
        self.put(SLICES.format(namespace), name, value)

    def objects(self, collection: str) -> dict[str, Object]:
        return self._objects.get(collection, {})

    # ── Effects on watches ───────────────────────────────────────────────────────────────────────────────────────────

    def expire(self) -> None:
        """Forget the history: earlier versions and pages get 410 from now on."""
        self._run(self._expire())

    def error(self, code: int = 500, reason: str = "InternalError") -> None:
        """Send an ERROR event to every watch, and end them."""
        self._run(self._send_error({"kind": "Status", "code": code, "reason": reason, "message": "told to"}))

    def bookmark(self) -> None:
        """Advance every watch's version by a bookmark."""
        self._run(self._bookmark())

    def drop(self) -> None:
        """Close every connection; the port stays open."""
        self._run(self._reopen())

    def asked(self, word: str) -> int:
        """Return how many requests contain this word."""
        return sum(word in item for item in self.requests)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{HOST}:{self.port}"

    def kubeconfig(self, file: Path, user: Mapping[str, Any] | None = None, **cluster: Any) -> Path:
        """Write a kubeconfig for it, by default with the token `good`."""
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": self.url, **cluster}}],
            "users": [{"name": "u", "user": {"token": "good"} if user is None else dict(user)}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
        file.chmod(0o600)
        return file

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _open(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port, reuse_address=True, ssl_context=self.tls).start()

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _reopen(self) -> None:
        await self._close()
        await self._open()

    async def _store(self, collection: str, name: str, value: Object | None) -> Object:
        objects = self._objects.setdefault(collection, {})
        before = objects.get(name)
        self._version += 1
        if value is None:
            item = {**objects.pop(name)}
        else:
            api_version, kind = _KINDS[collection.rsplit("/", 1)[-1]]
            item = objects[name] = {"apiVersion": api_version, "kind": kind, **json.loads(json.dumps(value))}
        parts = collection.split("/")
        namespace = {"namespace": parts[parts.index("namespaces") + 1]} if "namespaces" in parts else {}
        item["metadata"] = {
            **item.get("metadata", {}),
            "name": name,
            **namespace,
            "resourceVersion": str(self._version),
        }
        event = "DELETED" if value is None else "MODIFIED" if before else "ADDED"
        self._events.append((self._version, event, collection, item, before))
        await self._notify()
        return item

    async def _expire(self) -> None:
        self._version += 1
        self._oldest = self._version
        self._continues.clear()

    async def _send_error(self, status: Object) -> None:
        self._version += 1
        self._events.append((self._version, "ERROR", "", status, None))
        await self._notify()

    async def _bookmark(self) -> None:
        self._version += 1
        self._events.append((self._version, "BOOKMARK", "", {}, None))
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or token not in self.tokens:
            return _status(401, "Unauthorized", "Unauthorized")
        if request.path == _REVIEW:
            return await self._review(request)
        resource = request.path.rsplit("/", 1)[-1]
        if resource in self.unknown:
            return _status(404, "NotFound", "the server could not find the requested resource")
        if resource not in _KINDS:
            return await self._answer_one(request)
        if resource in self.forbidden:
            return _status(403, "Forbidden", f'{resource} is forbidden: User "u" cannot list resource "{resource}"')
        if request.method == "POST":
            value = await request.json()
            name = value["metadata"]["name"]
            if name in self.objects(request.path):
                return _status(409, "AlreadyExists", f'{resource} "{name}" already exists')
            return web.json_response(await self._store(request.path, name, value), status=201)
        return await (self._watch(request) if request.query.get("watch") else self._list(request))

    async def _answer_one(self, request: web.Request) -> web.StreamResponse:
        collection, _, name = request.path.rpartition("/")
        if (resource := collection.rsplit("/", 1)[-1]) in self.forbidden:
            return _status(403, "Forbidden", f'{resource} "{name}" is forbidden: User "u" cannot get it')
        item = self.objects(collection).get(name)
        if item is None:
            return _status(404, "NotFound", f'"{name}" not found')
        if request.method == "PUT":
            value = await request.json()
            version = value.get("metadata", {}).get("resourceVersion")
            if version and version != item["metadata"]["resourceVersion"]:
                return _status(409, "Conflict", "the object has been modified")
            item = await self._store(collection, name, value)
        elif request.method == "PATCH":
            return await self._patch(request, collection, name, item)
        elif request.method == "DELETE":
            item = await self._store(collection, name, None)
        return web.json_response(_shape(item, request))

    async def _patch(self, request: web.Request, collection: str, name: str, item: Object) -> web.Response:
        if request.content_type != "application/merge-patch+json":
            return _status(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        patch = await request.json()
        version = patch.get("metadata", {}).get("resourceVersion")
        if version and version != item["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified")
        merged = _merged(item, patch)
        values = [
            *(merged.get("data") or {}).values(),
            *map(base64.b64decode, (merged.get("binaryData") or {}).values()),
        ]
        if sum(map(len, values)) > 1 << 20:
            return _status(422, "Invalid", f'ConfigMap "{name}" is invalid: []: Too long: may not be more than 1048576')
        return web.json_response(_shape(await self._store(collection, name, merged), request))

    async def _review(self, request: web.Request) -> web.Response:
        attributes = (await request.json())["spec"]["resourceAttributes"]
        allowed = attributes["resource"] not in self.forbidden
        return web.json_response({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        limit = min(int(request.query.get("limit", self.page)), self.page)
        token = request.query.get("continue")
        if token:
            if token not in self._continues:
                return _status(410, "Expired", "The provided continue parameter is too old")
            _, items, version = self._continues.pop(token)
        else:
            selected = _Selector(request.query)
            items = [item for _, item in sorted(self.objects(request.path).items()) if selected(item)]
            version = self._version
        metadata = {"resourceVersion": str(version)}
        if len(items) > limit:
            metadata["continue"] = f"page-{version}-{len(items)}"
            self._continues[metadata["continue"]] = request.path, items[limit:], version
        shown = [_shape(item, request) for item in items[:limit]]
        return web.json_response({"kind": "List", "metadata": metadata, "items": shown})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion") or self._version)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if version < self._oldest:
            message = f"too old resource version: {version} ({self._oldest})"
            status = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": message}
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return response
        deadline = self._loop.time() + float(request.query.get("timeoutSeconds", 1800))
        selected, position = _Selector(request.query), 0
        with suppress(TimeoutError, ConnectionResetError):
            async with asyncio.timeout_at(deadline):
                while True:
                    for number, kind, collection, item, before in self._events[position:]:
                        position += 1
                        if number <= version or (collection and collection != request.path):
                            continue
                        shown = _shown(kind, item, before, selected)
                        if shown:
                            moved = {"kind": "Bookmark", "metadata": {"resourceVersion": str(number)}}
                            line = {"type": shown, "object": moved if kind == "BOOKMARK" else _shape(item, request)}
                            await response.write(json.dumps(line).encode() + b"\n")
                        if kind == "ERROR":
                            return response
                    async with self._changed:
                        while len(self._events) <= position:
                            await self._changed.wait()
        return response


async def _cancel_others() -> None:
    """End responses to watches whose connections are closed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _merged(value: Any, patch: Any) -> Any:
    """Return the object after a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    before = value if isinstance(value, dict) else {}
    changed = {key: _merged(before.get(key), item) for key, item in patch.items() if item is not None}
    return {key: item for key, item in before.items() if key not in patch} | changed


class _Selector:
    """`key=value,…` of the query's label selector, and the name of its field selector."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self._wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
        self._name = query.get("fieldSelector", "").removeprefix("metadata.name=")

    def __call__(self, item: Object) -> bool:
        metadata = item.get("metadata", {})
        labels = metadata.get("labels") or {}
        is_named = not self._name or metadata["name"] == self._name
        return is_named and all(labels.get(key) == value for key, value in self._wanted.items())


def _shown(kind: str, item: Object, before: Object | None, selected: _Selector) -> str:
    """Return which event a watch with this selector gets; an empty string means none."""
    if kind not in {"ADDED", "MODIFIED", "DELETED"}:
        return kind
    was, is_now = before is not None and selected(before), kind != "DELETED" and selected(item)
    return {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get((was, is_now), "")


def _shape(item: Object, request: web.Request) -> Object:
    accepted = request.headers.get("Accept", "")
    is_partial = "as=PartialObjectMetadata" in accepted and "g=meta.k8s.io;v=v1," in accepted
    if not is_partial or item.get("kind") == "Status":
        return item
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item.get("metadata", {})}


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


@contextmanager
def serving_api(tls: ssl.SSLContext | None = None) -> Iterator[ApiServer]:
    """Run an API server on loopback."""
    server = ApiServer(tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def endpoint(pod: str, address: str, *, state: str = "ready", **more: Any) -> Object:
    """Return an endpoint that is `ready`, `terminating` (and still serves), `ended` (terminating and not serving) or
    `unready`."""
    conditions = {
        "ready": {"ready": True, "serving": True, "terminating": False},
        "terminating": {"ready": False, "serving": True, "terminating": True},
        "ended": {"ready": False, "serving": False, "terminating": True},
        "unready": {"ready": False, "serving": False, "terminating": False},
    }[state]
    target = {"targetRef": {"kind": "Pod", "name": pod, "namespace": "ml"}} if pod else {}
    return {"addresses": [address], "conditions": conditions, **target, **more}


def pod(address: str, *, state: str = "ready", labels: Mapping[str, str] | None = None, **more: Any) -> Object:
    """Return a pod in one of the states of `endpoint`, by default with the label `app: vllm`."""
    is_ready, is_deleted = state in {"ready", "terminating"}, state in {"terminating", "ended"}
    deleted = {"deletionTimestamp": "2026-11-30T04:00:00Z"} if is_deleted else {}
    return {
        "metadata": {"labels": {"app": "vllm"} if labels is None else dict(labels), **deleted},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            **more,
        },
    }


def inference_pool(*ports: int, **labels: str) -> Object:
    """Return an InferencePool with these target ports, by default of the pods with the label `app: vllm`."""
    return {
        "spec": {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    }
