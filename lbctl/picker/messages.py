"""What the picker is asked and what it answers, in the terms of no protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lbctl.ir.locality import Place

MAX_BODY_BYTES = 256 << 10
"""Bytes of a body that are looked at."""
_ANYWHERE = Place()


@dataclass(frozen=True, slots=True)
class Caller:
    """What a proxy says about itself and its route."""

    pool: str | None
    """The pool that the request goes to; None for a gateway that knows no pools."""
    proxy: str = ""
    """Its name; empty where it does not say."""
    regions: frozenset[str] = frozenset()
    """The regions that the route allows; empty: any."""
    place: Place = _ANYWHERE
    """Where it runs."""
    leaves_busy: bool = False
    """Whether the request goes on to another replica where the picked one is busy."""
    tenant: str = ""
    """The tenant that it has authenticated; empty if the route knows none."""


class PickerQuestion(NamedTuple):
    """One request."""

    caller: Caller
    """Who asks, and for which pool."""
    headers: Mapping[str, list[str]]
    """Name in lower case → its values."""
    body: bytes
    """The beginning of the body."""
    body_length: int
    """The length of the whole body, as far as it is known."""
    subset: frozenset[str] | None = None
    """The addresses among which the replica must be; None: any."""
    id: str = ""
    """How the proxy will name the pick when the request ends; empty: the picker chooses its name."""


class PickerAnswer(NamedTuple):
    """The answer. Without names, the proxy chooses by itself."""

    id: str = ""
    """Names the pick when the request ends; empty without a replica."""
    names: tuple[str, ...] = ()
    """The names of the replicas, in the order in which they should be tried."""
    addresses: tuple[str, ...] = ()
    """Their addresses."""
    full: bool = False
    """Whether there is none because all that are ready carry as many requests as they may."""


class ResponseStart(NamedTuple):
    """How the answer to a request begins."""

    served: str = ""
    """The address of the replica that gives it; empty where the proxy does not say."""
    by_replica: bool = True
    """Whether a replica gives it: False where the proxy could reach none."""
    moved: bool = False
    """Whether it is another replica than the picked one, where the proxy says that instead of the address."""
