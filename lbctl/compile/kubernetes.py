"""`discovery.kubernetes`: the service and its labels resolved, and the kubeconfig found on this machine."""

from __future__ import annotations

from typing import Literal

from lbctl.compile.allowed_files import of_control_plane
from lbctl.compile.context import Context
from lbctl.compile.convert import maybe
from lbctl.compile.files import file_of
from lbctl.ir import pools as ir
from lbctl.model import kubernetes as model
from lbctl.model.node import descend


def kubernetes(ctx: Context, pool: str, section: model.Kubernetes) -> ir.KubernetesDiscovery:
    """Resolve the section. Reports LB123 for a context without a kubeconfig."""
    path = ("pools", pool, "discovery", "kubernetes")
    if section.context is not None and section.kubeconfig is None:
        ctx.error("LB123", "a context, but no kubeconfig", (*path, "context"), "kubeconfig: kube/config")
    node = descend(ctx.source.root, (*path, "kubeconfig"))
    return ir.KubernetesDiscovery(
        namespace=section.namespace,
        service=section.service,
        port=section.port or "",
        kubeconfig=section.kubeconfig,
        kubeconfig_file=str(file_of(ctx.source, node)) if node is not None and section.kubeconfig else None,
        control_files=tuple(of_control_plane(ctx.source)) if section.kubeconfig else (),
        context=section.context,
        gpu_from=maybe(section.gpu_from, _label),
        zone_from=_zone(section.zone_from),
        max_replicas=section.max_replicas,
        gpus=tuple(sorted(ctx.fleet.gpus.items())) if section.gpu_from else (),
    )


def _label(source: model.LabelSource) -> ir.LabelSource:
    if source.node_label is not None:
        return ir.LabelSource("node", source.node_label)
    return ir.LabelSource("pod", source.pod_label or "")


def _zone(source: str | model.LabelSource | None) -> ir.LabelSource | Literal["endpoint"] | None:
    return "endpoint" if isinstance(source, str) else maybe(source, _label)
