"""Opens the stores that several control planes can share, by URL scheme."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import NamedTuple, TypeVar, cast

from lbctl.ir.proxies import Store
from lbctl.ir.store_url import parse_store_url
from lbctl.runtime import log
from lbctl.store.credentials import read_keyring
from lbctl.store.interface import SharedStore, StoreUnreachableError, UnusableError
from lbctl.store.signed_store import SignedStore

_T = TypeVar("_T")
_RETRY = 1.0
"""Seconds between attempts."""


class StoreModule(NamedTuple):
    """Module and class of a store."""

    module: str
    name: str
    """Class whose `open` takes the settings, the member's name and a text that is unique to the handle."""
    extra: str = ""
    """Optional extra that installs its client; empty if none is needed."""


KINDS = {
    "redis": StoreModule("lbctl.store.redis", "RedisStore", "redis"),
    "redis+sentinel": StoreModule("lbctl.store.redis", "RedisStore", "redis"),
    "etcd": StoreModule("lbctl.store.etcd", "EtcdStore"),
    "kubernetes": StoreModule("lbctl.store.kubernetes", "KubernetesStore"),
}
"""Maps a scheme without the TLS suffix to a store."""


def open_shared(store: Store, member: str) -> SignedStore:
    """Return the store at this URL, without connecting. Raises UnusableError."""
    keys = read_keyring(store)
    url = parse_store_url(store.url)
    kind = KINDS.get(url.kind)
    if kind is None:
        known = ", ".join(f"{name}://" for name in KINDS)
        raise UnusableError(f"unknown store {url.scheme}://; lbctl supports {known}")
    try:
        module = import_module(kind.module)
    except ModuleNotFoundError as error:
        if not kind.extra or (error.name or "").startswith("lbctl"):
            raise
        needed = f"the package {error.name}, which is not installed: pip install 'lbctl[{kind.extra}]'"
        raise UnusableError(f"the store {url.scheme}:// needs {needed}") from None
    opened = cast(Callable[[Store, str, str], SharedStore], getattr(module, kind.name).open)
    return SignedStore(opened(store, member, keys.new_instance(member)), keys)


async def answered(work: Callable[[], Awaitable[_T]]) -> _T:
    """Return the result of the work, retrying until the store responds.

    Raises StoreError for other failures.
    """
    reported = ""
    while True:
        try:
            return await work()
        except StoreUnreachableError as error:
            if str(error) != reported:
                log.error(f"waiting for the store: {error}")
                reported = str(error)
            await asyncio.sleep(_RETRY)
