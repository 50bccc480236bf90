"""Rules about the replica picker: what it is told, what it reads, and how far a cache may lead it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from lbctl.ir.pools import PickPolicy, Pool
from lbctl.lint.fleet_view import FleetView, sources_of
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.lint.sample import LLM, sample
from lbctl.targets import picker_key

_MAX_BOUND = 2.0
"""The largest `bound` that still bounds anything: replicas of twice the mean load queue while others are idle."""
_COMMON_PROMPT = 1024
"""Bytes that a system prompt or a tool list easily has."""
_CANARY = "chat: {match: {path_prefix: /v1/chat}, split: {llama: 95, canary: 5}}\n"
_EMBED = "embed: {match: {path_prefix: /v1/embeddings}, pool: llama}\n"
_EMBEDDER = f"model: {{name: bge-embedder}}\n{LLM}"


def _canary(balance: str) -> str:
    replica = 'replicas: [{name: c, address: "10.0.0.3:8000", gpu: H100-SXM}]\n'
    return f"canary:\n{textwrap.indent(replica + balance + LLM, '  ')}"


@rule(
    "LB223",
    "warning",
    "the picker without telemetry",
    what="A pool has `algorithm: pick`, and nothing is read of its replicas.",
    why="The picker counts what it has sent itself. When an engine has computed a prompt, how fast it is, and what "
    "others send to it only the engine can tell: without that a slow replica gets as much work as a fast one until its "
    "requests pile up, and requests whose end was not reported count for a quarter of an hour.",
    before=sample("model: {name: llama-3}\nbalance: {algorithm: pick}\n"),
    after=sample(LLM + "balance: {algorithm: pick}\n"),
    ignore="The engine has no metrics that lbctl reads, and all replicas are alike.",
)
def pick_without_telemetry(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB223: pick where nothing is read of the replicas."""
    for pool, _ in _picked(fleet):
        if not any(sources_of(pool)):
            message = "the picker cannot see how much the engines have computed"
            yield RuleFinding(_path(pool, "algorithm"), message, 'telemetry: {sources: [{kind: vllm, url: "…"}]}')


@rule(
    "LB224",
    "warning",
    "affinity without a bound",
    what="The `bound` of a pool with `algorithm: pick` is above 2.",
    why="A bound of more than twice the mean load is none in a small pool: the replica with the popular session or "
    "system prompt gets all of its requests and queues while others are idle. The work that a cache saves is weighed "
    "against the wait in any case; a larger bound only lets the wait win later.",
    before=sample(LLM + "balance: {algorithm: pick, pick: {bound: 8}}\n"),
    after=sample(LLM + "balance: {algorithm: pick, pick: {bound: 1.25}}\n"),
    ignore="State that only one replica has must be found again, whatever it costs.",
)
def affinity_without_bound(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB224: bounds that bound nothing."""
    for pool, policy in _picked(fleet):
        if policy.bound > _MAX_BOUND:
            path = _path(pool, "pick", "bound")
            message = f"up to {policy.bound:g} times the mean load a cache keeps its requests"
            yield RuleFinding(path, message, "bound: 1.25", Edit(path, 1.25))


@rule(
    "LB225",
    "note",
    "bodies are read where nothing needs them",
    what="A pool with `algorithm: pick` reads the beginning of prompts, and its model generates nothing.",
    why="An embedder or a classifier has no cache of prompts to find again. To read a body the proxy holds it, and the "
    "picker parses it: that costs memory and time for each request.",
    before=sample(_EMBEDDER + "balance: {algorithm: pick}\n", routes=_EMBED),
    after=sample(_EMBEDDER + "balance: {algorithm: pick, pick: {prefix: off}}\n", routes=_EMBED),
    ignore="The engine keeps a cache of prompts nevertheless.",
)
def needless_body(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB225: prompts that are read before a model without a prefix cache."""
    for pool, policy in _picked(fleet):
        if policy.prefix is not None and pool.model is not None and not fleet.generates(pool.name):
            message = "bodies are read to recognise prompts, and this model keeps none"
            yield RuleFinding(_path(pool, "pick", "prefix"), message, "prefix: off")


@rule(
    "LB226",
    "note",
    "a picker for one replica",
    what="A pool with `algorithm: pick` has one replica.",
    why="There is nothing to choose, and each request waits for the answer all the same.",
    before=sample(LLM, routes=_CANARY, pools=_canary("balance: {algorithm: pick}\n")),
    after=sample(LLM, routes=_CANARY, pools=_canary("")),
    ignore="More replicas come soon.",
)
def pick_of_one(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB226: pick in a pool of one replica."""
    for pool, _ in _picked(fleet):
        if pool.discovery is None and len(pool.replicas) == 1:
            yield RuleFinding(
                _path(pool, "algorithm"), "one replica leaves nothing to pick", "algorithm: least_request"
            )


@rule(
    "LB227",
    "note",
    "a hash of a system prompt",
    what="A pool that generates text is hashed by so few bytes of the prompt that a common system prompt fills them.",
    why="Where all requests begin alike, the hash is the same for all: one replica gets everything up to the bound, "
    "and the rest by chance. Replayed with 8 and 32 proxies, a trace of conversations found 40 % of its prompts in "
    "caches with such a hash, and 90 % with one of the session. The engines tell it: the metric "
    "lbctl_replica_cache_hits_ratio is low on all replicas while one has most requests.",
    before=sample(LLM + "balance: {algorithm: hash, hash: {key: {prompt_prefix: 256}, bounded_load: 1.25}}\n"
    "weighting: {strategy: static}\n"),
    after=sample(LLM + "balance: {algorithm: pick}\n"),
    ignore="The first bytes of prompts differ: no system prompt, no tools.",
)  # fmt: skip
def hash_of_system_prompt(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB227: prompt hashes that end within a system prompt."""
    for pool in fleet.pools:
        key = pool.balance.key
        if key and key.kind == "prompt_prefix" and key.bytes < _COMMON_PROMPT and fleet.generates(pool.name):
            message = f"{key.bytes} bytes are the same for all requests with a common system prompt"
            hint = "algorithm: pick, key: {header: x-session-id}, or more bytes than the system prompt has"
            yield RuleFinding(_path(pool, "hash", "key"), message, hint)


@rule(
    "LB228",
    "error",
    "the picker beyond loopback without client certificates",
    what="`control.picker.bind` can be reached from elsewhere, and `control.xds.tls`, which the picker uses, has no "
    "`client_ca`.",
    why="The picker is sent the beginning of prompts and names addresses of replicas: whoever connects could learn "
    "them, and could claim work that is not there. `lbctl serve` does not start it so (LB513) without `--insecure`.",
    before=sample(LLM + "balance: {algorithm: pick}\n", more='control: {picker: {bind: "0.0.0.0:18001"}}\n'),
    after=sample(
        LLM + "balance: {algorithm: pick}\n",
        more="control:\n"
        '  picker: {bind: "0.0.0.0:18001"}\n'
        "  xds: {tls: {certificate: tls/xds.crt, key: tls/xds.key, client_ca: tls/proxies-ca.crt}}\n",
    ),
    ignore="The network admits the proxies alone, and serve is started with `--insecure`.",
)
def picker_without_client_certificates(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB228: the picker beyond loopback without client certificates."""
    control = fleet.topology.control
    protected = control.xds_tls is not None and control.xds_tls.client_ca is not None
    if any(_picked(fleet)) and not control.picker_bind.on_loopback and not protected:
        message = f"{control.picker_bind} takes prompts from whoever connects"
        hint = "control.xds.tls: {certificate: …, key: …, client_ca: …}"
        yield RuleFinding(("control", "picker", "bind"), message, hint)


@rule(
    "LB248",
    "warning",
    "questions to the picker without a key",
    what="A pool has `algorithm: pick`, and `lbctl serve` makes no key for the questions: it does not write the "
    "configuration of every proxy, or the control plane has several members. The fleet names no "
    "`control.picker.key_file`.",
    why="The picker listens on loopback. Without a key it answers every user of the machine, who can fill replicas "
    "with requests that do not exist, and so move the traffic of others.",
    before=sample(LLM + "balance: {algorithm: pick}\n", more="proxies: {edge: {kind: nginx}}\n"),
    after=sample(
        LLM + "balance: {algorithm: pick}\n",
        more="proxies:\n  edge: {kind: nginx, config: /etc/nginx/nginx.conf, reload: {command: [nginx, -s, reload]}}\n",
    ),
    ignore="Nobody else has an account on the machines of the proxies.",
)
def questions_without_a_key(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB248: questions to the picker without a key."""
    reason = picker_key.missing(fleet.topology)
    pool = next((pool for pool, _ in _picked(fleet)), None)
    if reason and pool is not None:
        message = f"the picker answers every user of its machine: {reason}"
        yield RuleFinding(
            _path(pool), message, "control.picker.key_file: a file with a key for all proxies and pickers"
        )


def _picked(fleet: FleetView) -> Iterator[tuple[Pool, PickPolicy]]:
    return ((pool, pool.balance.pick) for pool in fleet.pools if pool.balance.pick is not None)


def _path(pool: Pool, *keys: str) -> tuple[str, ...]:
    return ("pools", pool.name, "balance", *keys)
