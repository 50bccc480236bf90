"""The state of a simulation as columns: the requests, the engines and the proxies.

Column `x` of replica r is `x[r]`; of proxy q and replica r it is `x[q * replicas + r]`; of slot i of replica r it is
`x[r * sequences + i]`. Times are seconds, lengths are tokens. Columns of what a run does not need have one element.
"""

from __future__ import annotations

from typing import Any, NamedTuple

PENDING, DONE, GAVE_UP, SHED, BROKEN = range(5)
"""States of a request: under way, answered, left by its client, refused by the proxy's limits, lost with a replica."""
NOWHERE, FOR_ANY, FOR_ONE = range(3)
"""Where requests wait that find no room: they are refused; for the first replica that has room; for the chosen one."""
IDLE, PREFILL, DECODE, LAST = range(4)
"""What an engine does: nothing, one iteration that reads prompts, a run of iterations that only generate, one iteration
that only generates and whose end is known."""


class Requests(NamedTuple):
    """The requests in the order of their arrival."""

    arrived: Any
    """When it arrives."""
    prompt: Any
    """Tokens of its prompt."""
    answer: Any
    """Tokens of its answer."""
    proxy: Any
    """The proxy that gets the request."""
    key: Any
    """What a hash is made of: the session, or the beginning of the prompt; 0 to 2³² − 1."""
    draw: Any
    """A random number, 0 to 2³² − 1."""
    second_draw: Any
    """A random number, 0 to 2³² − 1."""
    block_start: Any
    """Where its prefix blocks begin in `blocks`."""
    block_count: Any
    """How many prefix blocks it has."""
    blocks: Any
    """The ids of prefix blocks of all requests, one after the other."""
    replica: Any
    """Where it was sent; −1: nowhere, or not yet."""
    first: Any
    """When its first token was generated; negative: not yet."""
    last: Any
    """When its last token was generated; negative: not yet."""
    state: Any
    """PENDING, DONE, GAVE_UP, SHED or BROKEN."""
    hit: Any
    """Tokens of the prompt that the prefix cache had."""
    need: Any
    """Tokens that must be in the cache before it generates (more than the prompt after a preemption)."""
    rest: Any
    """Tokens that it still has to generate when it is read."""
    follower: Any
    """The next request in the queue of its engine or proxy; −1: none."""
    admitted: Any
    """The number of its admission, by which the youngest is preempted; 0: it waits for one."""
    log: Any
    """What has happened, for the picker: 2 · request for a first token, 2 · request + 1 for an end."""


class EngineColumns(NamedTuple):
    """The engines: what an iteration costs, what they do, and what they publish.

    An iteration takes (a + b · sequences + c · context + p · prompt tokens) ÷ factor.
    """

    a: Any
    """Seconds of an iteration."""
    b: Any
    """Seconds for each sequence."""
    c: Any
    """Seconds for each token of context."""
    p: Any
    """Seconds for each prompt token."""
    sequences: Any
    """The largest number of sequences at a time."""
    cache: Any
    """The size of the KV cache."""
    up: Any
    """Whether its port is open: 1 or 0."""
    factor: Any
    """Multiplies the speed; 0: the engine stands still."""
    kind: Any
    """IDLE, PREFILL, DECODE or LAST."""
    begun: Any
    """When the present iteration, or run of iterations, began."""
    end: Any
    """When it ends; infinite: never."""
    planned: Any
    """The number of iterations of the run."""
    tokens: Any
    """Prompt tokens that the present iteration reads."""
    context: Any
    """Tokens in the KV cache."""
    step: Any
    """Iterations since the beginning."""
    running: Any
    """Sequences that generate."""
    reading: Any
    """Sequences whose prompt is being read."""
    waiting: Any
    """The length of the queue."""
    left: Any
    """Those of the queue whose clients have left; they are dropped when they come to its head."""
    head: Any
    """The first request of the queue."""
    tail: Any
    """The last request of the queue."""
    run_request: Any
    """The requests that generate."""
    run_done: Any
    """A heap by the step at which a request is done."""
    read_request: Any
    """The requests whose prompt is being read, in the order of admission."""
    read_left: Any
    """How many of their tokens are still to be read."""
    prefill_tokens: Any
    """Prompt tokens read since the beginning."""
    decode_tokens: Any
    """Tokens generated since the beginning."""
    itl_seconds: Any
    """The sum of the times between two tokens."""
    itl_count: Any
    """The number of those times."""
    preempted: Any
    """Sequences that were preempted."""
    heap: Any
    """Engines as a heap by `end`."""
    place: Any
    """The position of each engine in `heap`."""
    cache_sets: Any
    """The sets of its prefix cache, of 8 blocks each."""
    cache_start: Any
    """Where its blocks begin in `cached_block`."""
    cached_block: Any
    """Ids of cached blocks."""
    cached_at: Any
    """When each was last used, as a count of uses."""
    busy_seconds: Any
    """Seconds in which iterations ran."""


class ProxyColumns(NamedTuple):
    """The proxies' own books, one after the other."""

    active: Any
    """Requests in flight that this proxy knows."""
    total: Any
    """Their sum for each proxy."""
    given: Any
    """The weights of the replicas; 0 and less: gets nothing."""
    weight: Any
    """The weights among which it chooses: those of `given`, or 0 where it skips a replica that is full."""
    head: Any
    """The first request that waits for a replica; −1: none. Those for any replica stand at the proxy's first one."""
    tail: Any
    """The last of them."""
    waiting: Any
    """The number of requests that wait in each proxy."""
    refusing: Any
    """One element: 1 while all requests are refused, since too few replicas are healthy."""
    current: Any
    """The state of smooth round robin."""
    due: Any
    """Envoy's deadlines."""
    now: Any
    """The last deadline of each proxy."""
    turn: Any
    """The order in which replicas were last used."""
    ring_point: Any
    """Points of the hash ring, sorted."""
    ring_replica: Any
    """The replica of each point."""


class RunSettings(NamedTuple):
    """What does not change during a run."""

    replicas: int
    budget: int
    """The most prompt tokens of an iteration."""
    slots: int
    """The largest number of sequences of any engine."""
    patience: float
    """Seconds after which a client without a first token leaves."""
    policy: int
    """How the proxies choose: one of `choosers`."""
    bound: float
    """A hash leaves a replica that has so many times its part of the requests in flight; 0: never."""
    jumps: bool
    """Envoy's bound: the part is rounded up and compared without the new request, and the rest goes to any replica."""
    block: int
    """Tokens of a prefix block; 0: no prefix cache."""
    limit: int
    """The most requests that a proxy has at one replica; 0: unlimited."""
    skips_full: bool
    """Whether a proxy chooses only among replicas that are below `limit`."""
    waits: int
    """Where requests wait that find no room: NOWHERE, FOR_ANY or FOR_ONE."""
    total_limit: int
    """The most requests that a proxy has at all replicas; 0: unlimited."""
    waiting_limit: int
    """The most requests that wait in a proxy."""
    waiting_time: float
    """The seconds after which a request that waits is refused."""


class RunProgress(NamedTuple):
    """How far a run is: columns with one element each, so that compiled code can change them."""

    arrival: Any
    """The next request that arrives."""
    leaving: Any
    """The next request whose patience ends."""
    admissions: Any
    """The number of admissions."""
    uses: Any
    """The number of uses of prefix blocks."""
    turns: Any
    """The number of changes of the books."""
    logged: Any
    """The length of `log`."""
    expiring: Any
    """The next request that is refused if it still waits in a proxy."""
    refused: Any
    """The replica that has just refused a connection; −1: none."""
