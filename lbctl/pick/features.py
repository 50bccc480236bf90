"""Features of a request that determine the decision: its session, its prompt's prefix, and its size.

All input comes from a client and is untrusted: unreadable fields are treated as absent, long keys are replaced with a
hash, and `BODY_LIMIT` bounds the work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from lbctl.ir.locality import NOWHERE, Place
from lbctl.ir.pools import PickPolicy
from lbctl.pick import lengths, partial_json, prompt
from lbctl.pick.prompt import EMPTY, PromptLength
from lbctl.pick.table import PoolTable

BODY_LIMIT = 64 * 1024
"""Maximum number of bytes of the body to read. Bytes beyond this limit have no effect."""
_MAX_KEY = 128


class Features(NamedTuple):
    """Features of one request."""

    pool: str
    """The pool selected by the proxy's routes."""
    session: str | None = None
    """Value of the first session key present in the request. Long values are replaced with a hash."""
    prefix: tuple[int, ...] = ()
    """Chain hashes of the prompt's prefix.

    The n-th hash covers the first n blocks as well as the pool, tenant, model and adapter.
    """
    body_bytes: int = 0
    """Length of the entire body, as far as it is known."""
    prompt_tokens: float = 0.0
    """Estimated length of the prompt in tokens, corrected with the pool's learned factors."""
    model: str | None = None
    """The model named in the body."""
    adapter: str | None = None
    """The LoRA adapter that the request names, if the pool's model has it."""
    subset: frozenset[str] | None = None
    """Addresses (`ip:port`) that the proxy allows; None allows any, and an empty set allows none."""
    regions: frozenset[str] = frozenset()
    """Regions that the route allows (data residency); empty allows any."""
    place: Place = NOWHERE
    """Location of the querying proxy, used for the pool's `locality`."""
    tenant: str = ""
    """The tenant that sent the request; empty if the route does not define tenants. Tenants do not share affinity
    entries."""
    session_key: str | None = None
    """Name of the session key present in the request: a header, or a field such as `$.user`."""
    length: PromptLength = EMPTY
    """Prompt length estimated from the content, without learned factors."""


def read(
    table: PoolTable,
    headers: Mapping[str, Sequence[str]],
    body: bytes = b"",
    body_length: int | None = None,
    *,
    subset: frozenset[str] | None = None,
    regions: frozenset[str] = frozenset(),
    place: Place = NOWHERE,
    tenant: str = "",
    factors: lengths.Factors = lengths.UNLEARNED,
) -> Features:
    """Return the features of a request.

    `headers` must have lowercase names. `body` is the complete body or its beginning. `body_length` is the length of
    the entire body, or None if it is unknown. `tenant` is the tenant name authenticated by the proxy. `factors` correct
    the prompt length. Client input never raises an exception.
    """
    policy = table.policy
    length = max(len(body), body_length or 0)
    beginning = body[:BODY_LIMIT] if policy.reads_bodies else b""
    parsed = partial_json.read(beginning) if beginning else None
    document = parsed if isinstance(parsed, dict) else {}
    model = document.get("model")
    adapter = model if isinstance(model, str) and model in table.adapters else None
    rules, seed = policy.prefix, f"{table.pool}\0{tenant}\0{table.model}\0{adapter}"
    texts = prompt.texts(document, rules.block * rules.blocks if rules else 0) if document else None
    prompt_length = prompt.length(texts, beginning, length)
    session, session_key = _session(policy, headers, document)
    return Features(
        pool=table.pool,
        session=session,
        prefix=prompt.chain(texts, seed, rules) if rules and texts else (),
        body_bytes=length,
        prompt_tokens=lengths.tokens(prompt_length, factors),
        model=model if isinstance(model, str) else None,
        adapter=adapter,
        subset=subset,
        regions=regions,
        place=place,
        tenant=tenant,
        session_key=session_key,
        length=prompt_length,
    )


def _session(
    policy: PickPolicy, headers: Mapping[str, Sequence[str]], document: Mapping[str, object]
) -> tuple[str, str] | tuple[None, None]:
    """Return the value and name of the first session key present in the request."""
    for key in policy.session:
        value = next(iter(headers.get(key.header, ())), "") if key.header else _field(document, key.body)
        if value:
            return value if len(value) <= _MAX_KEY else _shortened(value), key.name
    return None, None


def _field(document: Mapping[str, object], path: str) -> str:
    """Return the string or number at `path` (for example `$.metadata.user`) as a string; empty if there is none."""
    value: object = document
    for step in _steps(path):
        value = value.get(step) if isinstance(value, dict) else None
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


@lru_cache(256)
def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")[1:])


def _shortened(value: str) -> str:
    return f"blake2b:{hashlib.blake2b(value.encode('utf-8', 'replace'), digest_size=16).hexdigest()}"
