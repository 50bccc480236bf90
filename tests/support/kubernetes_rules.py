"""Rules that lbctl's own code has to keep: a few of the CEL rules of the schemas, and of Istio's webhook.

The webhook is not part of the schemas: https://github.com/istio/istio/tree/1.30.0/pkg/config/validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Tree = dict[str, Any]
_SINGLE_FILTERS = ("RequestHeaderModifier", "ResponseHeaderModifier", "RequestRedirect", "URLRewrite")
_RETRY_CONDITIONS = {
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
}


def broken(item: Tree) -> Iterator[str]:
    """Yield the broken rules of an object."""
    group = item["apiVersion"].partition("/")[0]
    rule = _RULES.get(f"{group} {item['kind']}")
    if rule is not None:
        yield from rule(item["spec"])


# ── Gateway API ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _gateway(spec: Tree) -> Iterator[str]:
    sections = [(each["port"], each["protocol"], each.get("hostname")) for each in spec["listeners"]]
    if len(set(sections)) < len(sections):
        yield "port, protocol and hostname must be unique for each listener"


def _http_route(spec: Tree) -> Iterator[str]:
    if sum(len(rule["matches"]) for rule in spec["rules"]) > 128:
        yield "more than 128 matches"
    for rule in spec["rules"]:
        yield from (f"{rule['name']}: {problem}" for problem in _rule(rule))


def _rule(rule: Tree) -> Iterator[str]:
    filters = {each["type"]: each for each in rule.get("filters", ())}
    rewrite = filters.get("URLRewrite", {}).get("urlRewrite", {}).get("path", {})
    types = [match["path"]["type"] for match in rule["matches"]]
    if rewrite.get("type") == "ReplacePrefixMatch" and types != ["PathPrefix"]:
        yield "ReplacePrefixMatch needs exactly one prefix"
    if "RequestRedirect" in filters and rule.get("backendRefs"):
        yield "a redirect has backends"
    single = [each["type"] for each in rule.get("filters", ()) if each["type"] in _SINGLE_FILTERS]
    if len(set(single)) < len(single):
        yield "a filter is repeated"
    if any("port" not in backend for backend in rule.get("backendRefs", ()) if "kind" not in backend):
        yield "a Service without port"


# ── Istio ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _virtual_service(spec: Tree) -> Iterator[str]:
    for rule in spec["http"]:
        yield from (f"{rule['name']}: {problem}" for problem in _http(rule))


def _http(rule: Tree) -> Iterator[str]:
    if sum(key in rule for key in ("route", "redirect", "directResponse")) != 1:
        yield "not exactly one of route, redirect and directResponse"
    if "redirect" in rule and "rewrite" in rule:
        yield "a redirect with a rewrite"
    weights = [each.get("weight", 0) for each in rule.get("route", ())]
    if len(weights) > 1 and not any(weights):
        yield "destinations without weights"
    retries = rule.get("retries", {})
    if retries.get("attempts") == 0 and retries.keys() & {"perTryTimeout", "retryOn", "retryRemoteLocalities"}:
        yield "retries are disabled, but configured"
    conditions = filter(None, retries.get("retryOn", "").split(","))
    if unknown := [each for each in conditions if each not in _RETRY_CONDITIONS and not each.isdecimal()]:
        yield f"unknown conditions of a retry: {', '.join(unknown)}"


def _service_entry(spec: Tree) -> Iterator[str]:
    if any(not each.get("address") for each in spec.get("endpoints", ())):
        yield "an endpoint without address"
    if any(each.get("weight") == 0 for each in spec.get("endpoints", ())):
        yield "the weight 0, which Istio reads as 1"
    numbers = [each["number"] for each in spec["ports"]]
    if len(set(numbers)) < len(numbers):
        yield "a repeated port number"


# ── Envoy Gateway ────────────────────────────────────────────────────────────────────────────────────────────────────


def _policy(spec: Tree) -> Iterator[str]:
    targets = {(each["group"], each["kind"]) for each in spec["targetRefs"]}
    if unknown := targets - {("gateway.networking.k8s.io", kind) for kind in ("Gateway", "HTTPRoute")}:
        yield f"a policy of {unknown}"


def _traffic_policy(spec: Tree) -> Iterator[str]:
    yield from _policy(spec)
    if "requestBuffer" in spec and spec.get("httpUpgrade"):
        yield "requestBuffer with httpUpgrade"
    balance = spec.get("loadBalancer", {})
    algorithm = balance.get("type")
    if (algorithm == "ConsistentHash") != ("consistentHash" in balance):
        yield "the type ConsistentHash needs consistentHash"
    if "slowStart" in balance and algorithm in ("Random", "ConsistentHash"):
        yield f"slowStart with {algorithm}"
    if algorithm == "ConsistentHash" and "preferLocal" in balance.get("zoneAware", {}):
        yield "preferLocal with ConsistentHash"
    budget = spec.get("circuitBreaker", {}).get("retryBudget", {}).get("percent", {})
    if budget.get("numerator", 0) > budget.get("denominator", 100):
        yield "a retry budget above 100 %"
    check = spec.get("healthCheck", {}).get("active")
    if check is not None and check["type"].lower() not in check and check["type"] != "GRPC":
        yield f"a health check of the type {check['type']} without its settings"


def _extension_policy(spec: Tree) -> Iterator[str]:
    yield from _policy(spec)
    for processor in spec.get("extProc", ()):
        body = processor.get("processingMode", {}).get("request", {}).get("body")
        if body == "FullDuplexStreamed" and processor.get("failOpen"):
            yield "FullDuplexStreamed with failOpen"


def _backend(spec: Tree) -> Iterator[str]:
    kinds = [set(each) & {"fqdn", "ip", "unix"} for each in spec["endpoints"]]
    if any(len(kind) != 1 for kind in kinds):
        yield "an endpoint needs one of fqdn, ip and unix"
    if {"fqdn"} in kinds and any(kind != {"fqdn"} for kind in kinds):
        yield "names are mixed with addresses"
    tls = spec.get("tls", {})
    if tls.get("insecureSkipVerify") and tls.keys() & {"caCertificateRefs", "wellKnownCACertificates"}:
        yield "a CA that is not used"


_RULES: Mapping[str, Callable[[Tree], Iterator[str]]] = {
    "gateway.networking.k8s.io Gateway": _gateway,
    "gateway.networking.k8s.io HTTPRoute": _http_route,
    "networking.istio.io VirtualService": _virtual_service,
    "networking.istio.io ServiceEntry": _service_entry,
    "gateway.envoyproxy.io BackendTrafficPolicy": _traffic_policy,
    "gateway.envoyproxy.io ClientTrafficPolicy": _policy,
    "gateway.envoyproxy.io SecurityPolicy": _policy,
    "gateway.envoyproxy.io EnvoyExtensionPolicy": _extension_policy,
    "gateway.envoyproxy.io Backend": _backend,
}
