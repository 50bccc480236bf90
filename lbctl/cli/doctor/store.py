"""Checks the store that control-plane members share: access, the leader, and the members' clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

from lbctl.base.errors import reason_of
from lbctl.cli.doctor.check import DoctorResult
from lbctl.cli.doctor.kubernetes import is_allowed
from lbctl.cli.doctor.sources import ANSWER_TIMEOUT
from lbctl.ir.proxies import Store
from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.client import ApiClient, ApiError
from lbctl.runtime.net.kubernetes.cluster import ClusterError
from lbctl.serve.ha.format import check_format
from lbctl.serve.ha.presence import MemberInfo, read_infos
from lbctl.serve.ha.records import FOLLOWED
from lbctl.serve.settings import ServeSettings
from lbctl.store.interface import NEARLY_FULL, StoreError, StoreUnreachableError, Usage
from lbctl.store.kubernetes_objects import rights
from lbctl.store.open import open_shared
from lbctl.store.signed_store import SignedStore
from lbctl.store.signing import UNSIGNED

_SKEW = 1.0
"""Maximum difference between the members' clocks, in seconds."""
_NAME = "doctor"
_ETCD_QUOTA = 2 << 30
"""etcd's default quota, in bytes."""
_NO_PERMISSION = "grant the account the Role in docs/how-to/deploy-in-kubernetes.md"
_FULL = "see docs/reference/stores.md for the causes of growth and the limits"


def checks(settings: ServeSettings) -> Iterator[DoctorResult]:
    """Yield results for the fleet's store and its members' clocks. Nothing is written to the store."""
    store = settings.control.store
    if store is None:
        return
    what = f"store {store.url}"
    try:
        if missing := asyncio.run(_missing_rights(store)):
            yield DoctorResult(what, "failed", f"the account lacks permission to {', '.join(missing)}", _NO_PERMISSION)
            return
        opened = open_shared(store, _NAME)
        leader, members, usage = asyncio.run(_read(opened))
    except (StoreUnreachableError, TimeoutError) as error:
        reason = reason_of(error, f"no response within {ANSWER_TIMEOUT:g} s")
        yield DoctorResult(what, "failed", reason, "start it, or correct control.store.url", absent=True)
        return
    except StoreError as error:
        yield DoctorResult(what, "failed", str(error), "see docs/concepts/high-availability.md")
        return
    names = ", ".join(item.name for item in members) or "none"
    led = f"the leader is {leader}" if leader else "there is no leader"
    yield DoctorResult(what, "ok", f"{led}; members: {names}")
    yield from _signatures(opened)
    yield from _clocks(members)
    yield from (_fullness(item) for item in usage if item.problem or item.size >= NEARLY_FULL * _limit(item))


def _signatures(store: SignedStore) -> Iterator[DoctorResult]:
    """Yield results for rejected content in the store, and for the acceptance of unsigned content."""
    for subject, problem in store.refused.items():
        finding = f"{subject}: {problem}"
        advice = "find the other writer, or use the same control.store.key_file for all members"
        yield DoctorResult("store content", "failed", finding, advice)
    if store.keys.keys and store.keys.accepts_unsigned:
        finding = f"content without a signature is accepted, because the key file contains the line `{UNSIGNED}`"
        yield DoctorResult("store keys", "warn", finding, "remove the line when all members have the file")
    elif store.keys.keys:
        yield DoctorResult("store keys", "ok", "content without a valid signature is rejected")


async def _read(store: SignedStore) -> tuple[str, tuple[MemberInfo, ...], tuple[Usage, ...]]:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await check_format(store)
            for key in FOLLOWED:
                await store.read(key)
            return await store.leader(), read_infos(await store.members()), await store.usage()
    finally:
        await store.close()


async def _missing_rights(store: Store) -> list[str]:
    """Return the permissions that the account lacks for a store in Kubernetes. Raises StoreUnreachableError."""
    url = urlsplit(store.url)
    if url.scheme != "kubernetes":
        return []
    client = ApiClient(kubeconfig.ambient, ANSWER_TIMEOUT)
    needed = list(rights(url.netloc, url.path.strip("/")))
    try:
        allowed = await asyncio.gather(*(is_allowed(client, path, verb, name) for path, verb, name in needed))
    except (ApiError, ClusterError) as error:
        raise StoreUnreachableError(str(error)) from None
    finally:
        await client.close()
    lacking = (right for right, is_granted in zip(needed, allowed, strict=True) if not is_granted)
    return [f"{verb} {path.rsplit('/', 1)[-1]} {name}".strip() for path, verb, name in lacking]


def _limit(usage: Usage) -> int:
    return usage.limit if usage.limit is not None else _ETCD_QUOTA


def _fullness(usage: Usage) -> DoctorResult:
    finding = f"{usage.size / (1 << 20):.1f} MiB of {_limit(usage) / (1 << 20):.0f} MiB"
    if usage.problem:
        return DoctorResult(usage.name, "failed", f"{usage.problem}: it rejects writes; {finding}", _FULL)
    return DoctorResult(usage.name, "warn", finding, _FULL)


def _clocks(members: tuple[MemberInfo, ...]) -> Iterator[DoctorResult]:
    for item in members:
        if abs(item.clock) > _SKEW:
            finding = f"{abs(item.clock):.1f} s {'behind' if item.clock > 0 else 'ahead of'} the leader's"
            yield DoctorResult(f"clock of member {item.name}", "warn", finding, "synchronise it with NTP")
