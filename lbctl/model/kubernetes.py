"""`pools.*.discovery.kubernetes`: replicas from a Kubernetes cluster. `proxies.*.kubernetes`: rendered objects."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema, model_validator

from lbctl.base.diagnostics import did_you_mean, show
from lbctl.ir.proxies import ISTIO_NAMESPACE
from lbctl.model import values as v
from lbctl.model.section import Choice, OneOf, Section, refuse

_ENDPOINT = "endpoint"
_PORT_HINT = "use the port's name in the service, for example http, or its number"


class LabelSource(Section):
    CHOICES: ClassVar = (Choice(("node_label", "pod_label")),)

    node_label: v.KubernetesLabel | None = Field(None, description="Label of the pod's node.")
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

    namespace: v.KubernetesName = Field(description="Namespace of the service or InferencePool.")
    service: v.KubernetesName | None = Field(
        None, description="Name of the service. Each of its endpoints is a replica."
    )
    inference_pool: v.KubernetesObject | None = Field(
        None,
        description="Name of an InferencePool (`inference.networking.k8s.io/v1`). Each selected pod is a replica. If "
        "it has several target ports, each port on a pod is a replica.",
    )
    port: Annotated[str, PlainValidator(_port), WithJsonSchema(_PORT_SCHEMA)] | None = Field(
        None,
        description="Service port name or pod port number. Default: the service's only port.",
    )
    service_port: v.Port | None = Field(
        None,
        description="Service port number for proxies rendered as Kubernetes objects. "
        "Default: `port` if it is a number, which works only if the service and its pods use the same port number.",
    )
    selector: Annotated[dict[v.KubernetesLabel, v.KubernetesLabelValue], Field(min_length=1, max_length=64)] | None = (
        Field(
            None,
            description="Pod labels, for an InferencePool. Required for `gateway-api` with `algorithm: pick`.",
        )
    )
    kubeconfig: v.FilePath | None = Field(
        None,
        description="Kubeconfig file with the cluster and credentials. Default: the credentials of the pod that lbctl "
        "runs in.",
    )
    context: v.KubernetesContext | None = Field(
        None, description="Kubeconfig context to use. Default: its current context."
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
        description="Maximum number of endpoints; additional endpoints are ignored. Circuit breakers are sized for "
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
        description="Class of the Gateway to render. Required for `gateway-api` unless `gateway` is set. Default for "
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
        description="IDs of protections that another component provides. For example, a Gateway class's policy may "
        "provide `route.auth.api_keys`. Routes that need these protections stay open; otherwise, such routes return "
        "503.",
    )
    picker: v.KubernetesName = Field(
        "lbctl-picker",
        description="The picker's Service, for pools with `algorithm: pick`. If several pools use the picker, each "
        "pool has its own Service, with the pool's name as a suffix.",
    )
    secrets: dict[v.FilePath, v.KubernetesObject] = Field(
        {},
        description="Secret names, keyed by certificate file. Default: built from the "
        "proxy's name and the listener's or pool's name. With `istio`, the default starts with the namespace if the "
        "pods are in a different namespace.",
    )
