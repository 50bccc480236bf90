"""Rules about splits between versions of a model, and rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from lbctl.control.loop_output import shortest_interval
from lbctl.ir.routes import Forward
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.lint.sample import sample
from lbctl.targets import uncounted, untimed

_REPORTS = 5.0
"""Seconds between two reports of a proxy without telemetry."""
_V1 = "model: {name: llama-3.1-8b, version: v1}\n"
_V2 = """\
llama-v2:
  model: {name: llama-3.1-8b, version: v2}
  replicas:
    - {name: c, address: "10.0.0.3:8000", gpu: H100-SXM}
    - {name: d, address: "10.0.0.4:8000", gpu: H100-SXM}
"""


def _split(more: str) -> str:
    return f"chat: {{match: {{path_prefix: /v1/chat}}, split: {{llama: 95, llama-v2: 5}}{more}}}\n"


def _rollout(requests: int) -> str:
    return f"""\
chat:
  match: {{path_prefix: /v1/chat}}
  split: {{llama: 95, llama-v2: 5}}
  sticky_split: {{cookie: variant}}
  rollout:
    to: llama-v2
    steps: [{{percent: 5%, hold: 10m}}, {{percent: 100%}}]
    analysis: {{min_requests: {requests}, max_latency: {{percentile: p99, ratio: 1.2}}}}
"""


def _analysed(more: str, runtime_api: str = "") -> str:
    """Return the YAML of a fleet with an analysis and a HAProxy."""
    routes = f"""\
chat:
  match: {{path_prefix: /v1/chat}}
  split: {{llama: 95, llama-v2: 5}}
  sticky_split: {{cookie: variant}}
  rollout:
    to: llama-v2
    steps: [{{percent: 5%, hold: 10m}}, {{percent: 100%}}]
    analysis: {{max_error_rate: 1%{more}}}
"""
    reload = 'config: /etc/haproxy/haproxy.cfg, reload: {command: ["systemctl", "reload", "haproxy"]}'
    return sample(_V1, routes=routes, pools=_V2, more=f"proxies:\n  edge: {{kind: haproxy, {reload}{runtime_api}}}\n")


def _timed(more: str) -> str:
    """Return the YAML of a fleet with a limit of latency and a HAProxy that its owner reloads."""
    routes = """\
chat:
  match: {path_prefix: /v1/chat}
  split: {llama: 95, llama-v2: 5}
  sticky_split: {cookie: variant}
  rollout:
    to: llama-v2
    steps: [{percent: 5%, hold: 10m}, {percent: 100%}]
    analysis: {max_latency: {percentile: p90, ratio: 1.2}}
"""
    proxies = "proxies:\n  edge: {kind: haproxy, runtime_api: /run/haproxy/admin.sock}\n"
    return sample(_V1, routes=routes, pools=_V2, more=f"{proxies}{more}")


@rule(
    "LB703",
    "warning",
    "an analysis of a rollout without figures",
    what="A route has a `rollout` in the mode `analysis`, and no proxy of the fleet can report its requests: a HAProxy "
    "without `runtime_api`, or a proxy that `lbctl serve` does not drive.",
    why="Each evaluation is inconclusive. Whoever waits for the next step, or for the way back when the new model is "
    "bad, waits in vain: 5 % of the requests stay where they are.",
    before=_analysed(""),
    after=_analysed("", ", runtime_api: /run/haproxy/admin.sock"),
    ignore="A person ends the steps, and the analysis is kept for other proxies.",
)
def analysis_without_figures(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB703: analyses for which no proxy reports requests."""
    proxies = fleet.topology.proxies
    if not proxies or any(not uncounted(proxy) for proxy in proxies):
        return
    for route in fleet.topology.routes:
        if route.rollout is not None and route.rollout.mode == "analysis":
            message = "no proxy of the fleet can report its requests: every evaluation is inconclusive"
            missing = next((f"proxies.{item.name}.{uncounted(item)}" for item in proxies), "")
            yield RuleFinding(("routes", route.name, "rollout"), message, f"{missing}, or mode: timed")


@rule(
    "LB704",
    "warning",
    "a limit of latency that nothing measures",
    what="`analysis.max_latency` is written, and no proxy of the fleet can report to `lbctl serve` how long requests "
    "take: a HAProxy sends the timers of its requests to `control.logs`, by a configuration that `serve` writes or "
    "`lbctl render` makes with that key.",
    why="What is not known is not good: no evaluation passes, so that a person has to end each step. Errors still roll "
    "the rollout back.",
    before=_timed(""),
    after=_timed('control: {logs: {bind: "127.0.0.1:18514"}}\n'),
    ignore="A person ends the steps, and looks at the latency.",
)
def latency_not_measured(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB704: analyses with a limit of latency that no proxy can measure."""
    proxies, logs = fleet.topology.proxies, fleet.topology.control.logs_written
    if not proxies or any(not untimed(proxy, logs) for proxy in proxies):
        return
    for route in fleet.topology.routes:
        rollout = route.rollout
        if rollout is None or rollout.mode != "analysis" or rollout.analysis is None:
            continue
        if rollout.analysis.latency_metric is not None:
            message = "no proxy of the fleet can report latencies: no evaluation passes, and a person ends each step"
            path = ("routes", route.name, "rollout", "analysis", "max_latency")
            yield RuleFinding(path, message, "control.logs, and the rendered configuration in HAProxy")


@rule(
    "LB706",
    "warning",
    "an analysis more often than proxies report",
    what="`analysis.interval` is shorter than the time between two reports of the proxies: five seconds, or the "
    "shortest `telemetry.interval` of a pool where that is less.",
    why="Most evaluations find no new request, are inconclusive, and fill the log; no step ends earlier by them.",
    before=_analysed(", interval: 2s", ", runtime_api: /run/haproxy/admin.sock"),
    after=_analysed(", interval: 10s", ", runtime_api: /run/haproxy/admin.sock"),
    ignore="All proxies are nginx, which report each second.",
)
def interval_below_reports(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB706: analyses more often than there are reports."""
    reports = min(_REPORTS, shortest_interval(fleet.topology) or _REPORTS)
    for route in fleet.topology.routes:
        analysis = route.rollout.analysis if route.rollout and route.rollout.mode == "analysis" else None
        if analysis is not None and analysis.interval < 1000 * reports:
            path = ("routes", route.name, "rollout", "analysis", "interval")
            message = f"proxies report every {reports:g} s: most evaluations find nothing new"
            yield RuleFinding(path, message, "interval: 10s", Edit(path, "10s"))


@rule(
    "LB710",
    "warning",
    "a split between versions of a model that mixes them",
    what="A route splits its requests between pools of different models or versions, and neither a sticky split nor a "
    "pin keeps a client with one of them.",
    why="Each turn of a conversation is drawn anew: the second answer comes from another model, whose cache has "
    "nothing of the first. Complaints cannot be told apart by version, and the metrics of both are mixed.",
    before=sample(_V1, routes=_split(""), pools=_V2),
    after=sample(_V1, routes=_split(", sticky_split: {cookie: variant, ttl: 1h}"), pools=_V2),
    ignore="Requests have nothing to do with each other, as embeddings of one index version must not be split at all.",
)
def split_mixes_versions(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB710: splits without stickiness between versions."""
    for route, action in fleet.forwards:
        if len(_models(fleet, action)) > 1 and action.sticky is None and not action.pins:
            message = "each request of a client is drawn anew: one conversation, several models"
            yield RuleFinding(("routes", route.name, "split"), message, "sticky_split: {cookie: NAME, ttl: 1h}")


def _models(fleet: FleetView, action: Forward) -> set[tuple[str, str | None]]:
    models = (fleet.pool(share.pool).model for share in action.shares if share.weight)
    return {(model.name, model.version) for model in models if model is not None}


@rule(
    "LB711",
    "warning",
    "a rollout whose sample cannot carry its percentile",
    what="`analysis.min_requests` is fewer than 10 ÷ (1 − p) for the percentile p that it judges.",
    why="Of 200 requests two are beyond the 99th percentile: one long prompt decides whether a model is rolled back.",
    before=sample(_V1, routes=_rollout(200), pools=_V2),
    after=sample(_V1, routes=_rollout(1000), pools=_V2),
    ignore="Requests are too few, and a person judges (`on_failure: pause`).",
)
def insufficient_sample(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB711: analyses with too few requests for their percentile."""
    for route in fleet.topology.routes:
        analysis = route.rollout.analysis if route.rollout else None
        if analysis is None or analysis.latency_metric is None:
            continue
        percentile = int(analysis.latency_percentile.removeprefix("p"))
        least = ceil(10 * 100 / (100 - percentile))
        if analysis.min_requests < least:
            path = ("routes", route.name, "rollout", "analysis", "min_requests")
            message = f"{analysis.min_requests} requests cannot tell {analysis.latency_percentile} from chance"
            yield RuleFinding(path, message, f"min_requests: {least}", Edit(path, least))
