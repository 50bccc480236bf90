"""Access lists of listeners as an AuthorizationPolicy for the gateway's pods.

A policy applies to the pods of its namespace, or of all namespaces if it is in the mesh's root namespace. The policy
sees the ports of the pods, which may differ from the Gateway's ports. The policy therefore specifies no ports, and all
listeners must have the same lists. The policy specifies the routes' hosts, so that other hosts on the same pods are not
affected. Pods whose labels differ from the default gateway's belong to the fleet, so the policy may apply to all of
their hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Listener
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Access, Redirect, access
from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import unmapped_networks
from lbctl.targets.istio.gateway import is_default, labels
from lbctl.targets.manifests.closing import Gap
from lbctl.targets.manifests.names import names, object_name
from lbctl.targets.manifests.objects import Objects, Tree

_FEATURE = "listener.access"


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the listeners whose lists no policy can enforce."""
    found = _reason(view, objects)
    if found is None:
        return
    for listener in _limited(view):
        key = "allow_from" if listener.allow_from is not None else "deny_from"
        yield Gap(_FEATURE, "listener", listener.name, ("listeners", listener.name, key), *found)


def _reason(view: View, objects: KubernetesObjects) -> tuple[str, str] | None:
    """Return the reason why no policy can enforce the lists, and a hint; None if a policy can."""
    limited = _limited(view)
    if objects.gateway is not None:
        return "a policy selects the pods of the gateway by labels, which lbctl does not know", "remove `gateway`"
    reason = hint = ""
    if any(listener.client_address is not None for listener in limited):
        reason = (
            "the mesh's `gatewayTopology` determines the addresses of clients, and it cannot trust only the load "
            "balancers of `client_address`"
        )
        hint = "remove `client_address`, or list listener.access in `assume` if another component compares addresses"
    elif len({access(listener) for listener in _affected(view)}) > 1:
        reason = "a policy applies to all ports of the gateway's pods, but the listeners have different lists"
        hint = "use the same lists, or separate entries with `gateway_labels` of different pods"
    elif any(access(item).of(view.routes[rule.route]) != access(item) for item in limited for rule in item.rules):
        reason, hint = "a policy applies to all routes, but a route has its own lists", "remove the lists of the route"
    elif limited and is_default(objects) and not _hosts(view):
        reason = (
            "without exact hosts, a policy applies to all hosts of the gateway's pods, and the default gateway may "
            "serve other applications"
        )
        hint = "set `hosts` without wildcards in all routes, or use `gateway_labels` of pods that serve only this fleet"
    return (reason, hint) if reason else None


def _limited(view: View) -> list[Listener]:
    """Return the listeners with lists. On a loopback listener, all routes return 503."""
    return [listener for listener in view.listeners if access(listener).is_limited and not listener.bind.on_loopback]


def _affected(view: View) -> list[Listener]:
    """Return the listeners that a policy may affect: those with lists, and those that do more than redirect."""
    return [
        listener
        for listener in view.listeners
        if not listener.bind.on_loopback
        and (
            access(listener).is_limited
            or any(not isinstance(view.routes[rule.route].action, Redirect) for rule in listener.rules)
        )
    ]


def policy(view: View, objects: KubernetesObjects) -> Access | None:
    """Return the lists that a policy enforces; None if no policy is needed or possible."""
    limited = _limited(view)
    if not limited or _reason(view, objects) is not None:
        return None
    first = access(limited[0])
    allow = None if first.allow is None else tuple(unmapped_networks(first.allow))
    return Access(allow, tuple(unmapped_networks(first.deny)))


def add_policy(objects: Objects, view: View, kubernetes: KubernetesObjects) -> None:
    """Add the policy if the listeners have lists."""
    lists = policy(view, kubernetes)
    if lists is None:
        return
    sources: list[Tree] = [{"source": {"remoteIpBlocks": list(lists.deny)}}] if lists.deny else []
    if lists.allow is not None:
        sources.append({"source": {"notRemoteIpBlocks": list(lists.allow)}})
    rule: Tree = {"from": sources}
    if hosts := _hosts(view):
        rule["to"] = [{"operation": {"hosts": hosts}}]
    # Other fleets may also have policies in this namespace.
    parts = (kubernetes.namespace, view.proxy.name, "access")
    name = names(object_name("AuthorizationPolicy"), [parts])[parts]
    objects.add(
        "security.istio.io/v1",
        "AuthorizationPolicy",
        name,
        "listener",
        ("listeners", _limited(view)[0].name),
        namespace=kubernetes.pods_namespace,
        spec={"selector": {"matchLabels": labels(kubernetes)}, "action": "DENY", "rules": [rule]},
    )


def _hosts(view: View) -> list[str]:
    """Return the hosts of the listeners; empty for all hosts.

    A wildcard pattern would not match a host with a port, which clients could use to evade the policy.
    """
    hosts = sorted({rule.host for listener in _affected(view) for rule in listener.rules})
    if any(not host or host.startswith("*") for host in hosts):
        return []
    return [pattern for host in hosts for pattern in (host, f"{host}:*")]


def diagnostics(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield a warning if the policy is in another namespace."""
    if policy(view, objects) is not None and objects.pods_namespace != objects.namespace:
        message = (
            f"the access lists become a policy in {objects.pods_namespace}, the namespace of the gateway's pods, so "
            "applying it requires permissions there"
        )
        path = ("proxies", view.proxy.name, "kubernetes")
        hint = "pods_namespace: NAMESPACE, if the pods are in another one"
        yield Diagnostic("LB174", message, path=path, hint=hint, severity="warning")
