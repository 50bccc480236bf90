"""Rules about splits between versions of a model, and rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from lbctl.ir.routes import Forward
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.lint.sample import sample

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
  rollout:   # lbctl: ignore LB703 (kept for later)
    to: llama-v2
    steps: [{{percent: 5%, hold: 10m}}, {{percent: 100%}}]
    analysis: {{min_requests: {requests}, max_latency: {{percentile: p99, ratio: 1.2}}}}
"""


_PLANNED = """\
chat:
  match: {path_prefix: /v1/chat}
  split: {llama: 95, llama-v2: 5}
  sticky_split: {cookie: variant}
"""


@rule(
    "LB703",
    "warning",
    "a rollout that nothing executes",
    what="A route has a `rollout` in the mode `analysis`. It is read and checked, and nothing executes it yet: the "
    "split of the file holds. `lbctl serve` executes the modes `manual` and `timed`.",
    why="Whoever waits for the next step, or for the way back when the new model is bad, waits in vain: 5 % of the "
    "requests stay where they are, for ever.",
    before=sample(_V1, routes=_PLANNED + "  rollout: {to: llama-v2, steps: [{percent: 100%}]}\n", pools=_V2),
    after=sample(
        _V1, routes=_PLANNED + "  rollout: {to: llama-v2, mode: manual, steps: [{percent: 100%}]}\n", pools=_V2
    ),
    ignore="The file is kept for a version of lbctl that executes it, and a person moves the split until then.",
)
def rollout_not_executed(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB703: rollouts that nothing executes."""
    for route in fleet.topology.routes:
        if route.rollout is not None and route.rollout.mode == "analysis":
            message = "nothing executes the mode analysis yet: the split stays as it is"
            hint = "mode: manual, and `lbctl rollout promote`; or mode: timed"
            yield RuleFinding(("routes", route.name, "rollout"), message, hint)


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
