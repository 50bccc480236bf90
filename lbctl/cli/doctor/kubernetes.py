"""Checks whether the fleet's Kubernetes API servers respond and permit the requests that discovery needs.

Permissions are checked with SelfSubjectAccessReview, which every account is allowed to create. Only InferencePools are
actually listed, because a cluster may not have their API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lbctl.cli.doctor.check import DoctorResult
from lbctl.cli.doctor.sources import ANSWER_TIMEOUT
from lbctl.ir.pools import KubernetesDiscovery, Pool
from lbctl.runtime.net.kubernetes.client import ApiClient, ApiError
from lbctl.runtime.net.kubernetes.cluster import ClusterError
from lbctl.runtime.net.kubernetes.collection import Collection
from lbctl.serve.discovery import inference_pool
from lbctl.serve.discovery.kubernetes import cluster_of, needed_keys

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = ("list", "watch")
_NOT_FOUND = 404
_NO_INFERENCE_POOL = "install version 1.0 or later of the Gateway API Inference Extension, and create the InferencePool"
_NO_PERMISSION = "grant the account a Role with these permissions (see docs/how-to/deploy-in-kubernetes.md)"


def checks(pools: Sequence[Pool], *, needed: bool) -> list[DoctorResult]:
    """Return a check for each pool with `discovery.kubernetes`.

    If discovery is not `needed`, because all of the fleet's proxies are Kubernetes gateways, problems do not count as
    failures.
    """
    sections = [(pool.name, pool.discovery) for pool in pools if isinstance(pool.discovery, KubernetesDiscovery)]
    results = asyncio.run(_checked(sections)) if sections else []
    return results if needed else list(map(_optional, results))


def _optional(result: DoctorResult) -> DoctorResult:
    if result.state == "ok":
        return result
    return replace(result, state="skipped", message=f"{result.message} (only serve needs this)", absent=False)


async def _checked(sections: Sequence[tuple[str, KubernetesDiscovery]]) -> list[DoctorResult]:
    return list(await asyncio.gather(*(_check(name, discovery) for name, discovery in sections)))


async def _check(pool: str, discovery: KubernetesDiscovery) -> DoctorResult:
    what = f"pools.{pool}.discovery.kubernetes {discovery.reference}"
    client = ApiClient(lambda: cluster_of(discovery))
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            missing = [
                f"{verb} {key.resource}"
                for key in needed_keys(discovery)
                for verb in _VERBS
                if not await is_allowed(client, key.path, verb)
            ]
            problem = "" if missing else await _inference_pool_problem(client, discovery)
    except TimeoutError:
        return DoctorResult(
            what, "failed", f"no response within {ANSWER_TIMEOUT:g} s", "check the API server", absent=True
        )
    except (ApiError, ClusterError) as error:
        return DoctorResult(what, "failed", str(error), "check the kubeconfig and the API server", absent=True)
    finally:
        await client.close()
    if missing:
        return DoctorResult(what, "failed", f"the account lacks permission to {', '.join(missing)}", _NO_PERMISSION)
    if problem:
        return DoctorResult(what, "failed", problem, _NO_INFERENCE_POOL)
    return DoctorResult(what, "ok", "the API server responds and permits list and watch")


async def _inference_pool_problem(client: ApiClient, discovery: KubernetesDiscovery) -> str:
    """Return the problem with the InferencePool, or "" if it exists or the source is a Service.

    Raises ApiError, ClusterError.
    """
    if not discovery.inference_pool:
        return ""
    key = needed_keys(discovery)[0]
    pools = Collection(client, key, inference_pool.POOL_SHAPE, lambda: None)
    try:
        await pools.read_all()
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return f"the cluster does not have {key.resource} of the API {key.version}"
    exists = f"{discovery.namespace}/{discovery.inference_pool}" in pools.objects
    return "" if exists else "the InferencePool does not exist"


async def is_allowed(client: ApiClient, path: str, verb: str, name: str = "") -> bool:
    """Return whether the account can use the verb on the collection at `path`, or on the object `name` in it.

    Raises ApiError, ClusterError.
    """
    attributes = {"verb": verb, "resource": path.rsplit("/", 1)[-1], **dict(_place(path))}
    if name:
        attributes["name"] = name
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    review = await client.request("POST", _REVIEWS, body=body)
    status = review.get("status")
    return isinstance(status, dict) and status.get("allowed") is True


def _place(path: str) -> Iterator[tuple[str, str]]:
    """Yield the collection's group and namespace, if present."""
    parts = path.split("/")
    if parts[1] == "apis":
        yield "group", parts[2]
    if "namespaces" in parts:
        yield "namespace", parts[parts.index("namespaces") + 1]
