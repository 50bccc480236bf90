"""A control plane's Kubernetes Lease, with an epoch.

Whether the Lease has expired is determined in the usual Kubernetes way: by this machine's clock since the last observed
change, not by the times in the Lease. The epoch is an annotation. It is at least the API server's time in milliseconds,
so that it increases even if the Lease has been deleted. Every change includes the resourceVersion that it replaces, so
that only one of two members can succeed.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lbctl.store.interface import MAX_EPOCH, ConflictError, FencedError, LeaseHeldError, UnusableError
from lbctl.store.kubernetes_client import LEASES, Object, ObjectClient
from lbctl.store.lease import elapsed

EPOCH = "lbctl/epoch"
"""Annotation with the epoch."""
_TRIES = 3


class _Held(NamedTuple):
    """A Lease as it was read."""

    version: str
    epoch: int
    member: str
    instance: str
    duration: float
    renewed: str
    transitions: int


class KubernetesLease:
    """The Lease `name`. `location`: location of the store, for messages."""

    def __init__(self, client: ObjectClient, name: str, member: str, instance: str, ttl: float, location: str) -> None:
        self.epoch = 0
        """Epoch of this handle's lease; 0 without the lease."""
        self._client = client
        self._name = name
        self._member = member
        self._instance = instance
        self._duration = max(1, math.ceil(ttl))
        self._location = location
        self._observed: tuple[str, str] = ("", "")
        """Instance and time of the last renewal that was read."""
        self._observed_at = -math.inf
        """When that renewal was first read, by this machine's clock."""

    async def acquire(self) -> int:
        """Acquire or extend the lease, and return the epoch. Raises LeaseHeldError and StoreError."""
        held = await self._read()
        if held is not None and held.instance == self._instance:
            await self._renew(held)
            self.epoch = held.epoch
            return held.epoch
        if held is not None and held.instance and elapsed() - self._observed_at < held.duration:
            raise LeaseHeldError(self._location, held.member, held.instance)
        epoch = max((held.epoch if held else 0) + 1, int(self._client.server_time * 1000))
        spec = {**self._spec(), "acquireTime": self._now(), "leaseTransitions": held.transitions + 1 if held else 0}
        try:
            await self._write(held, spec, epoch)
        except ConflictError:
            raise LeaseHeldError(self._location, await self.leader() or "another member") from None
        self.epoch = epoch
        return epoch

    async def renew(self) -> None:
        """Extend the lease. Raises FencedError if the lease is lost, and StoreError."""
        for _ in range(_TRIES):
            held = await self._read() if self.epoch else None
            if held is None or (held.instance, held.epoch) != (self._instance, self.epoch):
                self.epoch = 0
                raise FencedError(f"the lease on {self._location} has been lost")
            try:
                await self._renew(held)
            except ConflictError:
                continue
            return
        raise ConflictError(f"another client keeps changing the lease on {self._location}")

    async def release(self) -> None:
        """Release the lease, if this handle has it. Raises StoreError."""
        epoch, self.epoch = self.epoch, 0
        held = await self._read() if epoch else None
        if held is not None and held.instance == self._instance:
            await self._write(held, {"holderIdentity": ""}, held.epoch)

    async def leader(self) -> str:
        """Return the member that has the lease; empty if it is free. Raises StoreError."""
        held = await self._read()
        if held is None or not held.instance:
            return ""
        renewed = datetime.fromisoformat(held.renewed).timestamp()
        return held.member if self._client.server_time < renewed + held.duration + 1.0 else ""

    async def check(self, epoch: int) -> None:
        """Raise FencedError if the epoch differs from the current leader's epoch."""
        held = await self._read()
        if held is None or held.epoch != epoch or not held.instance:
            raise FencedError(f"epoch {epoch} is outdated: the current one is {held.epoch if held else 'none'}")

    async def _renew(self, held: _Held) -> None:
        await self._write(held, self._spec(), held.epoch)

    def _spec(self) -> dict[str, Any]:
        holder = f"{self._member}_{self._instance}"
        return {"holderIdentity": holder, "leaseDurationSeconds": self._duration, "renewTime": self._now()}

    def _now(self) -> str:
        return datetime.fromtimestamp(self._client.server_time, UTC).isoformat(timespec="microseconds")[:-6] + "Z"

    async def _write(self, held: _Held | None, spec: dict[str, Any], epoch: int) -> None:
        annotations = {EPOCH: str(epoch)}
        if held is None:
            await self._client.create(LEASES, self._name, {"spec": spec}, annotations)
            return
        metadata = {"resourceVersion": held.version, "annotations": annotations}
        await self._client.patch(LEASES, self._name, {"metadata": metadata, "spec": spec})

    async def _read(self) -> _Held | None:
        value = await self._client.get(LEASES, self._name)
        if value is None:
            return None
        held = self._parsed(value)
        if (held.instance, held.renewed) != self._observed:
            self._observed, self._observed_at = (held.instance, held.renewed), elapsed()
        return held

    def _parsed(self, value: Object) -> _Held:
        metadata, spec = value["metadata"], value.get("spec") or {}
        member, _, instance = str(spec.get("holderIdentity") or "").rpartition("_")
        renewed = str(spec.get("renewTime") or "")
        try:
            epoch = int((metadata.get("annotations") or {}).get(EPOCH, "" if spec.get("holderIdentity") else "0"))
            if epoch > MAX_EPOCH:
                raise ValueError(f"{epoch} is not an epoch")
            if instance:
                datetime.fromisoformat(renewed)
            return _Held(
                str(metadata["resourceVersion"]), epoch, member, instance,
                float(spec.get("leaseDurationSeconds") or self._duration), renewed,
                int(spec.get("leaseTransitions") or 0),
            )  # fmt: skip
        except (ValueError, TypeError):
            raise UnusableError(
                f"{self._location} has a leader that lbctl did not write (the Lease {self._name}): choose another "
                "name in control.store.url, or delete that Lease"
            ) from None
