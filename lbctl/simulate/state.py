"""The state of a simulation as columns: the requests, the engines and the proxies.

Column `x` of replica r is `x[r]`; of proxy q and replica r it is `x[q * replicas + r]`; of slot i of replica r it is
`x[r * sequences + i]`. Times are in seconds, lengths in tokens. Unused columns have one element.
"""

from __future__ import annotations

from typing import Any, NamedTuple

PENDING, DONE, GAVE_UP, SHED, BROKEN = range(5)
"""States of a request: in progress, answered, abandoned by its client, rejected by the proxy's limits, lost with a
replica."""
NOWHERE, FOR_ANY, FOR_ONE = range(3)
"""Handling of requests without capacity: rejected; queued for the first free replica; queued for the chosen replica."""
AT_PICKER = -2
"""Placeholder for a replica: the request is in the picker's queue."""
IDLE, PREFILL, DECODE, LAST = range(4)
"""States of an engine: idle; one iteration with prefill; a run of iterations without prefill; one iteration without
prefill whose end is known."""


class Requests(NamedTuple):
    """The requests, in order of arrival."""

    arrived: Any
    """Arrival time."""
    prompt: Any
    """Length of the prompt."""
    answer: Any
    """Length of the response."""
    proxy: Any
    """Proxy that receives the request."""
    key: Any
    """Hash key, from the session or the beginning of the prompt; 0 to 2³² − 1."""
    draw: Any
    """Random number, 0 to 2³² − 1."""
    second_draw: Any
    """Random number, 0 to 2³² − 1."""
    block_start: Any
    """Start of its prefix blocks in `blocks`."""
    block_count: Any
    """Number of the request's prefix blocks."""
    blocks: Any
    """IDs of the prefix blocks of all requests, concatenated."""
    replica: Any
    """Replica that it was sent to; −1: none, or not yet; `AT_PICKER`."""
    first: Any
    """Time of the request's first token; negative: not yet."""
    last: Any
    """Time of the request's last token; negative: not yet."""
    state: Any
    """PENDING, DONE, GAVE_UP, SHED or BROKEN."""
    hit: Any
    """Prompt tokens found in the prefix cache."""
    need: Any
    """Tokens that must be in the cache before it generates (more than the prompt after a preemption)."""
    rest: Any
    """Tokens left to generate after prefill."""
    follower: Any
    """Next request in the queue of its engine or proxy; −1: none."""
    admitted: Any
    """Sequence number of the request's admission, used to find the youngest for preemption; 0: not admitted."""
    log: Any
    """Events for the picker: 2 · request for a first token, 2 · request + 1 for an end."""


class EngineColumns(NamedTuple):
    """The engines: their costs, state and metrics.

    An iteration takes (a + b · sequences + c · context + p · prompt tokens) ÷ factor.
    """

    a: Any
    """Seconds per iteration."""
    b: Any
    """Seconds per sequence."""
    c: Any
    """Seconds per token of context."""
    p: Any
    """Seconds per prompt token."""
    sequences: Any
    """Maximum number of concurrent sequences."""
    cache: Any
    """Size of the KV cache."""
    up: Any
    """Whether the engine's port is open: 1 or 0."""
    factor: Any
    """Multiplier of the speed; 0: the engine is stopped."""
    kind: Any
    """IDLE, PREFILL, DECODE or LAST."""
    begun: Any
    """Start of the current iteration or run of iterations."""
    end: Any
    """End of the current iteration or run; infinite: never."""
    planned: Any
    """Number of iterations in the run."""
    tokens: Any
    """Prompt tokens that the current iteration prefills."""
    context: Any
    """Tokens in the KV cache."""
    step: Any
    """Iterations since the beginning."""
    running: Any
    """Number of sequences that are generating."""
    reading: Any
    """Number of sequences in prefill."""
    waiting: Any
    """Length of the queue."""
    left: Any
    """Queued requests whose clients have left. These requests are dropped when they reach the head of the queue."""
    head: Any
    """First request of the queue."""
    tail: Any
    """Last request of the queue."""
    run_request: Any
    """Requests that generate."""
    run_done: Any
    """Heap ordered by the step at which a request completes."""
    read_request: Any
    """Requests in prefill, in order of admission."""
    read_left: Any
    """Tokens of these requests left to prefill."""
    prefill_tokens: Any
    """Prompt tokens prefilled since the beginning."""
    decode_tokens: Any
    """Tokens generated since the beginning."""
    itl_seconds: Any
    """Sum of all inter-token times."""
    itl_count: Any
    """Number of inter-token times."""
    preempted: Any
    """Number of preempted sequences."""
    heap: Any
    """Engines as a heap ordered by `end`."""
    place: Any
    """Position of each engine in `heap`."""
    cache_sets: Any
    """Number of sets in the engine's prefix cache, each with 8 blocks."""
    cache_start: Any
    """Start of its blocks in `cached_block`."""
    cached_block: Any
    """IDs of cached blocks."""
    cached_at: Any
    """Last use of each cached block, as a count of uses."""
    busy_seconds: Any
    """Seconds during which iterations ran."""


class ProxyColumns(NamedTuple):
    """The concatenated state of the proxies."""

    active: Any
    """This proxy's requests in flight."""
    total: Any
    """Sum of `active` for each proxy."""
    given: Any
    """Weights of the replicas; a replica with 0 or less gets no requests."""
    weight: Any
    """Weights used for the choice: as in `given`, or 0 if the proxy skips a full replica."""
    head: Any
    """First request waiting for a replica; −1: none. The proxy's first entry also has the queue for any replica."""
    tail: Any
    """Last request of that queue."""
    waiting: Any
    """Number of requests waiting in each proxy."""
    refusing: Any
    """One element: 1 while all requests are rejected because too few replicas are healthy."""
    current: Any
    """State of smooth round robin."""
    due: Any
    """Envoy's deadlines."""
    now: Any
    """Each proxy's last deadline."""
    turn: Any
    """Order in which replicas were last used."""
    ring_point: Any
    """Points of the hash ring, sorted."""
    ring_replica: Any
    """Replica of each point."""


class RunSettings(NamedTuple):
    """Constant settings of a run."""

    replicas: int
    budget: int
    """Maximum number of prompt tokens per iteration."""
    slots: int
    """Maximum number of sequences of any engine."""
    patience: float
    """Seconds after which a client without a first token leaves."""
    policy: int
    """The proxies' chooser, one of `choosers`."""
    bound: float
    """Multiple of its share of requests in flight at which a hash skips a replica; 0: never."""
    jumps: bool
    """Envoy's bound: the share is rounded up and compared without the new request, and excess requests go to any
    replica."""
    block: int
    """Tokens per prefix block; 0: no prefix cache."""
    limit: int
    """Maximum number of requests of a proxy at one replica; 0: unlimited."""
    skips_full: bool
    """Whether a proxy chooses only among replicas below `limit`."""
    waits: int
    """Handling of requests without capacity: NOWHERE, FOR_ANY or FOR_ONE."""
    total_limit: int
    """Maximum number of requests of a proxy across all replicas; 0: unlimited."""
    waiting_limit: int
    """Maximum number of requests waiting in a proxy."""
    waiting_time: float
    """Seconds after which a waiting request is rejected."""


class RunProgress(NamedTuple):
    """The progress of a run, as columns with one element each that compiled code can change."""

    arrival: Any
    """Next request to arrive."""
    leaving: Any
    """Next request whose client's patience ends."""
    admissions: Any
    """Number of admissions."""
    uses: Any
    """Number of uses of prefix blocks."""
    turns: Any
    """Number of changes to the proxies' state."""
    logged: Any
    """Length of `log`."""
    expiring: Any
    """Next request to be rejected if it is still waiting in a proxy."""
    refused: Any
    """Replica that has just refused a connection; −1: none."""
    queued: Any
    """Number of requests waiting at the picker."""
