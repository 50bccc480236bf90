"""Rules about the choice of a replica: algorithms, hashes, affinity."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.pools import Pool
from lbctl.ir.shares import serving
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.lint.sample import LLM, sample
from lbctl.targets import KINDS, target

_NAMED_BY_REPLICAS = {
    "mcp-session-id": "{header: mcp-session-id}",
    "$.previous_response_id": "{cookie: NAME}, for clients that keep cookies",
}
"""Headers and fields of bodies with a session that the replica names → the affinity that keeps it."""
_UNLIKE = 2.0
"""The ratio of the largest to the smallest capacity of a pool from which its replicas count as different."""


@rule(
    "LB210",
    "warning",
    "round robin or random before generation or unlike GPUs",
    what="A pool that generates text, or whose replicas differ in capacity, is balanced by round robin or at random.",
    why="One request holds a GPU for 50 ms, the next for 30 s: turns are not work. A replica that got three long "
    "prompts gets its next turn all the same, and its queue grows while others idle. Only the number of requests in "
    "flight tells who is free.",
    before=sample("balance: {algorithm: round_robin}\n"),
    after=sample("balance: {algorithm: least_request}\n"),
    ignore="Every request takes the same time, as fixed-size embeddings do.",
)
def load_blind_algorithm(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB210: algorithms that ignore requests in flight."""
    for pool in fleet.pools:
        algorithm = pool.balance.algorithm
        if algorithm not in ("round_robin", "random"):
            continue
        subject = "a model that generates" if fleet.generates(pool.name) else "GPUs of unlike capacity"
        if fleet.generates(pool.name) or _spread(pool) >= _UNLIKE:
            path = ("pools", pool.name, "balance", *(("pick", "otherwise") if pool.balance.pick else ("algorithm",)))
            message = f"{algorithm} before {subject}: turns are not work"
            yield RuleFinding(path, message, f"{path[-1]}: least_request", Edit(path, "least_request"))


@rule(
    "LB211",
    "note",
    "HAProxy's least_request does not hold weights at low load",
    what="The fleet names an HAProxy, and a pool with least_request has replicas of which one counts twice another.",
    why="HAProxy's leastconn takes any idle server, whatever its weight: with fewer requests than replicas an L4 gets "
    "as many as an H100, and each takes several times as long there.",
    before=sample(
        "balance: {algorithm: least_request}\n",
        replicas="""\
- {name: a, address: "10.0.0.1:8000", gpu: A100-80GB}
- {name: b, address: "10.0.0.2:8000", gpu: A100-80GB}
- {name: c, address: "10.0.0.3:8000", gpu: A10}
""",
        more="proxies: {edge: {kind: haproxy}}\n",
    ),
    after=sample(
        replicas="""\
- {name: a, address: "10.0.0.1:8000", gpu: A100-80GB}
- {name: b, address: "10.0.0.2:8000", gpu: A100-80GB}
""",
        routes="chat: {match: {path_prefix: /v1/chat}, split: {llama: 100, llama-small: 17}}\n",
        pools="""\
llama-small:
  replicas:
    - {name: c, address: "10.0.0.3:8000", gpu: A10}
""",
        more="proxies: {edge: {kind: haproxy}}\n",
    ),
    ignore="The fleet is busy: from a few requests per replica on, leastconn holds the weights.",
)
def idle_replicas_before_weights(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB211: least_request on replicas of different capacity, where a proxy prefers idle replicas."""
    titles = [target(kind).title for kind in KINDS if kind in fleet.kinds and target(kind).prefers_idle_replicas]
    for pool in fleet.pools if titles else ():
        if pool.balance.name == "least_request" and _spread(pool) >= _UNLIKE:
            message = (
                f"{titles[0]} takes an idle replica whatever its weight, and these differ {_spread(pool):.1f}-fold"
            )
            hint = "a pool for each kind of GPU, and a split by their capacities"
            yield RuleFinding(("pools", pool.name, "balance", "algorithm"), message, hint)


@rule(
    "LB213",
    "warning",
    "a hash without bounded load",
    what="A pool is balanced by hash, and nothing bounds what one replica may get.",
    why="Keys are not equal: one long conversation or one large tenant makes its replica the hot one, its KV cache "
    "thrashes, and the hits that the hash was for are gone. In simulation the 99th percentile of the time to the "
    "first token was six times that of a hash bounded at 1.25.",
    before=sample("balance: {algorithm: hash, hash: {key: {header: x-session}}}\n"),
    after=sample("balance: {algorithm: hash, hash: {key: {header: x-session}, bounded_load: 1.25}}\n"),
    ignore="State that only one replica has must be found again, whatever it costs; or the proxies are nginx alone, "
    "whose hash has no bound.",
)
def hash_without_bounded_load(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB213: hashes without a bound on one replica's load."""
    for pool in fleet.pools:
        if pool.balance.algorithm == "hash" and pool.balance.bounded_load is None:
            path = ("pools", pool.name, "balance", "hash", "bounded_load")
            yield RuleFinding(
                path, "nothing bounds what a hot key does to its replica", "bounded_load: 1.25", Edit(path, 1.25)
            )


@rule(
    "LB214",
    "warning",
    "a hash whose weights move",
    what="A pool is balanced by hash, and its weighting follows live signals.",
    why="On a ring a weight is a part of the keys: each move sends conversations to replicas that do not have their "
    "cache, which makes those slower, which moves weights again.",
    before=sample(
        LLM + "balance: {algorithm: hash, hash: {key: {header: x-session}, bounded_load: 1.25}}\n"
        "weighting: {strategy: adaptive}\n"
    ),
    after=sample(
        LLM + "balance: {algorithm: hash, hash: {key: {header: x-session}, bounded_load: 1.25}}\n"
        "weighting: {strategy: static}\n"
    ),
    ignore="Faults are more frequent than requests that profit from a cache.",
)
def hash_with_dynamic_weights(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB214: hash rings whose weights change."""
    for pool in fleet.pools:
        if pool.balance.algorithm == "hash" and pool.weighting.strategy != "static":
            path = ("pools", pool.name, "weighting", "strategy")
            message = f"{pool.weighting.strategy} weights move keys from replica to replica"
            yield RuleFinding(path, message, "strategy: static, or no weighting", Edit(path, "static"))


@rule(
    "LB215",
    "note",
    "a hash of the prompt where a session's header is at hand",
    what="A pool is hashed by the beginning of the prompt, and a route to it already knows a header or cookie that "
    "names the client.",
    why="To hash the prompt a proxy must hold the body before it knows where to send it, which costs memory and the "
    "time to the first token, and nginx cannot at all. A header that identifies the conversation finds the same cache.",
    before=sample(
        "balance: {algorithm: hash, hash: {key: {prompt_prefix: 4096}, bounded_load: 1.25}}\n",
        routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, rate_limit: [{by: {header: x-session}, "
        "concurrent: 4}]}\n",
    ),
    after=sample(
        "balance: {algorithm: hash, hash: {key: {header: x-session}, bounded_load: 1.25}}\n",
        routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, rate_limit: [{by: {header: x-session}, "
        "concurrent: 4}]}\n",
    ),
    ignore="Many sessions share one long prompt, and its cache is worth more than each session's own.",
)
def prompt_hash_despite_session_key(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB215: hashes of the prompt where a header or cookie identifies the client."""
    for pool in fleet.pools:
        key = pool.balance.key
        session = _session(fleet, pool) if key and key.kind == "prompt_prefix" else ""
        if session:
            message = f"the proxy holds each body to hash its prompt, but {session} names the client"
            yield RuleFinding(("pools", pool.name, "balance", "hash", "key"), message, "key: {header: NAME}")


@rule(
    "LB247",
    "warning",
    "a session that the replica names is hashed",
    what="A pool hashes `mcp-session-id` or `previous_response_id`, or its picker takes one of them for a session.",
    why="The replica chooses this name in its first answer and keeps the session in its memory. The first request has "
    "no such name and goes to any replica; a hash of the name then leads to another one, which does not know the "
    "session. With three replicas, two of three sessions fail.",
    before=sample(
        "balance: {algorithm: hash, hash: {key: {header: mcp-session-id}, bounded_load: 1.25}}\n",
        routes="tools: {match: {path_prefix: /mcp}, pool: llama}\n",
    ),
    after=sample("affinity: {header: mcp-session-id}\n", routes="tools: {match: {path_prefix: /mcp}, pool: llama}\n"),
    ignore="All replicas keep their sessions in one shared store.",
)
def hash_of_named_session(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB247: hashes by a session that the replica names."""
    for pool in fleet.pools:
        path, key, policy = ("pools", pool.name, "balance"), pool.balance.key, pool.balance.pick
        if key is not None and key.kind in ("header", "json_body") and key.name in _NAMED_BY_REPLICAS:
            yield _named_session((*path, "hash", "key"), key.name)
        for index, item in enumerate(policy.session if policy is not None else ()):
            name = item.header or item.body or ""
            if name in _NAMED_BY_REPLICAS:
                yield _named_session((*path, "pick", "session", index), name)


def _named_session(path: Path, name: str) -> RuleFinding:
    message = f"{name} names a session that the replica chose: its requests go to other replicas"
    return RuleFinding(path, message, f"instead: affinity: {_NAMED_BY_REPLICAS[name]}")


def _session(fleet: FleetView, pool: Pool) -> str:
    if pool.affinity is not None:
        return f"the cookie {pool.affinity.cookie}"
    for route, action in fleet.forwards:
        if pool.name not in action.pools:
            continue
        if action.sticky is not None:
            return f"the {action.sticky.kind} {action.sticky.name} of route {route.name}"
        header = next((limit.header for limit in route.rate_limits if limit.header), "")
        if header:
            return f"the header {header} of route {route.name}"
    return ""


def _spread(pool: Pool) -> float:
    """The ratio of the largest to the smallest capacity."""
    capacities = [replica.capacity for replica in serving(pool)]
    return max(capacities) / min(capacities) if capacities else 1.0
