"""`pools.*.discovery.kubernetes`: replicas from a Kubernetes cluster. `proxies.*.kubernetes`: rendered objects."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema, model_validator

from lbctl.base.diagnostics import did_you_mean, show
from lbctl.ir.proxies import ISTIO_NAMESPACE
from lbctl.model import values as v
from lbctl.model.section import Choice, OneOf, Section, refuse

_ENDPOINT = "endpoint"
_PORT_HINT = "write the port's name in the service, for example http, or its number"


class LabelSource(Section):
    CHOICES: ClassVar = (Choice(("node_label", "pod_label")),)

    node_label: v.KubernetesLabel | None = Field(None, description="Label of the node that the pod runs on.")
    pod_label: v.KubernetesLabel | None = Field(None, description="Label of the pod.")


def _zone_source(value: object) -> str | LabelSource:
    if isinstance(value, dict):
        try:
            return LabelSource.model_validate(value)
        except ValidationError as error:
            place = error.errors()[0]["loc"]
            raise refuse("LB013", f"{show(value)} is not a valid zone source", "{node_label: LABEL}", place) from None
    if value != _ENDPOINT:
        hint = did_you_mean(value, (_ENDPOINT,)) if isinstance(value, str) else ""
        raise refuse(
            "LB013", f"{show(value)} is not a valid zone source", hint or "write endpoint or {node_label: LABEL}"
        )
    return _ENDPOINT


def _port(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refuse("LB013", f"{show(value)} is not a port", _PORT_HINT)
    if isinstance(value, int):
        if not 1 <= value <= 65535:
            raise refuse("LB013", f"{value} is not a port", "from 1 to 65535")
        return str(value)
    if not v.PORT_NAME.fullmatch(value):
        is_number = value.isascii() and value.isdecimal()
        hint = "write the number without quotes" if is_number else _PORT_HINT
        raise refuse("LB013", f"{show(value)} is not a port name", hint)
    return value


_PORT_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"type": "string", "pattern": f"^(?:{v.PORT_NAME.pattern})$", "grammar": "a port name: for example http"},
        {"type": "integer", "minimum": 1, "maximum": 65535},
    ]
}


class Kubernetes(Section):
    CHOICES: ClassVar = (
        Choice(("service", "inference_pool")),
        *(Choice(("inference_pool", key), required=False) for key in ("port", "service_port", "selector")),
    )

    namespace: v.KubernetesName = Field(description="Namespace of the service or of the InferencePool.")
    service: v.KubernetesName | None = Field(
        None, description="Name of the service. Each of its endpoints is a replica."
    )
    inference_pool: v.KubernetesObject | None = Field(
        None,
        description="Name of an InferencePool (`inference.networking.k8s.io/v1`). Each pod that it selects is a "
        "replica. If it has several target ports, each port of a pod is a replica.",
    )
    port: Annotated[str, PlainValidator(_port), WithJsonSchema(_PORT_SCHEMA)] | None = Field(
        None,
        description="Name of the service's port, or number of the pods' port. Default: the service's only port.",
    )
    service_port: v.Port | None = Field(
        None,
        description="Number of the service's port, for proxies that are rendered as Kubernetes objects. "
        "Default: `port` if it is a number, which is correct only if both ports are equal.",
    )
    selector: Annotated[dict[v.KubernetesLabel, v.KubernetesLabelValue], Field(min_length=1, max_length=64)] | None = (
        Field(
            None,
            description="Labels of the pods, for an InferencePool. `gateway-api` needs them with `algorithm: pick`.",
        )
    )
    kubeconfig: v.FilePath | None = Field(
        None,
        description="Kubeconfig with the cluster and the credentials. Default: the credentials of the pod that "
        "runs lbctl.",
    )
    context: v.KubernetesContext | None = Field(
        None, description="Context to use from the kubeconfig. Default: its current context."
    )
    gpu_from: LabelSource | None = Field(
        None, description="Source of a replica's GPU type. Default: all replicas have the same capacity."
    )
    zone_from: (
        Annotated[
            str | LabelSource,
            PlainValidator(_zone_source),
            OneOf({"const": _ENDPOINT}, LabelSource),
        ]
        | None
    ) = Field(
        None,
        description="Source of a replica's zone; `endpoint` uses the zone in the EndpointSlice. Default: none.",
    )
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1024,
        description="Maximum number of endpoints; further endpoints are ignored. Circuit breakers are sized for "
        "this number.",
    )

    @model_validator(mode="after")
    def _zone_of_pods(self) -> Self:
        if self.inference_pool is not None and self.zone_from == _ENDPOINT:
            raise refuse(
                "LB015",
                f"pods have no zone, so `zone_from: {_ENDPOINT}` and `inference_pool` cannot be set together",
                "zone_from: {node_label: topology.kubernetes.io/zone}",
                ("zone_from",),
            )
        return self


class KubernetesObjects(Section):
    CHOICES: ClassVar = (
        Choice(("gateway_class", "gateway"), required=False),
        Choice(("gateway_labels", "gateway"), required=False),
    )

    namespace: v.KubernetesName = Field(description="Namespace of the rendered objects.")
    gateway_class: v.KubernetesObject | None = Field(
        None,
        description="Class of the Gateway to render. `gateway-api` needs it, unless `gateway` is set. Default for "
        "`envoy-gateway`: `eg`.",
    )
    gateway: v.KubernetesReference | None = Field(
        None,
        description="Existing Gateway to which the routes are attached: `NAME` or `NAMESPACE/NAME`. lbctl renders no "
        "Gateway, so its owner configures addresses, TLS and limits.",
    )
    gateway_labels: (
        Annotated[dict[v.KubernetesLabel, v.KubernetesLabelValue], Field(min_length=1, max_length=64)] | None
    ) = Field(
        None,
        description="For `istio`: labels of the gateway's pods, to which the rendered Gateway applies. Default: "
        "`istio: ingressgateway`.",
    )
    pods_namespace: v.KubernetesName = Field(
        ISTIO_NAMESPACE,
        description="For `istio`: namespace of the gateway's pods, of the Secrets that they use, and of the policy "
        "with the access lists of listeners.",
    )
    assume: list[v.Name] = Field(
        [],
        description="IDs of protections that another component provides, such as `route.auth.api_keys` by a policy of "
        "the Gateway class. Routes that need these protections stay open; otherwise, such routes return 503.",
    )
    picker: v.KubernetesName = Field(
        "lbctl-picker",
        description="Service of the picker, for pools with `algorithm: pick`. If several pools use the picker, each "
        "has its own Service, whose name ends with the pool's name.",
    )
    secrets: dict[v.FilePath, v.KubernetesObject] = Field(
        {},
        description="Secret names, by the certificate file that the Secret replaces. Default: built from the names of "
        "the proxy and of the listener or pool. With `istio`, the default starts with the namespace if the pods are in "
        "another one.",
    )
