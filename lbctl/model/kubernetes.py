"""`pools.*.discovery.kubernetes`: the endpoints of a Kubernetes service."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema

from lbctl.base.diagnostics import did_you_mean, quoting_hint, show
from lbctl.model import values as v
from lbctl.model.section import Choice, OneOf, Section, refuse

_ENDPOINT = "endpoint"


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
            raise refuse("LB013", f"{show(value)} is not a source of zones", "{node_label: LABEL}", place) from None
    if value != _ENDPOINT:
        hint = did_you_mean(value, (_ENDPOINT,)) if isinstance(value, str) else ""
        raise refuse("LB013", f"{show(value)} is not a source of zones", hint or "endpoint or {node_label: LABEL}")
    return _ENDPOINT


def _port(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refuse("LB013", f"{show(value)} is not a port", "its name in the service, as http, or its number")
    if isinstance(value, int):
        if not 1 <= value <= 65535:
            raise refuse("LB013", f"{value} is not a port", "from 1 to 65535")
        return str(value)
    if not v.PORT_NAME.fullmatch(value):
        raise refuse("LB013", f"{show(value)} is not the name of a port", quoting_hint(value) or "as http, or a number")
    return value


_PORT_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"type": "string", "pattern": f"^(?:{v.PORT_NAME.pattern})$", "grammar": "the name of a port: as http"},
        {"type": "integer", "minimum": 1, "maximum": 65535},
    ]
}


class Kubernetes(Section):
    namespace: v.KubernetesName = Field(description="The namespace of the service.")
    service: v.KubernetesName = Field(description="Name of the service. Each of its endpoints is a replica.")
    port: Annotated[str, PlainValidator(_port), WithJsonSchema(_PORT_SCHEMA)] | None = Field(
        None,
        description="The name of the service's port, or the number of the pods' port. Default: the service's only "
        "port.",
    )
    kubeconfig: v.FilePath | None = Field(
        None, description="Kubeconfig with the cluster and the credentials. Default: the credentials of this pod."
    )
    context: v.KubernetesContext | None = Field(
        None, description="Context of the kubeconfig. Default: its current context."
    )
    gpu_from: LabelSource | None = Field(
        None, description="Source of the GPU type of a replica. Default: all replicas have the same capacity."
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
        description="Source of the zone of a replica; `endpoint` is the zone in the EndpointSlice. Default: none.",
    )
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1024, description="Maximum number of endpoints; more are ignored. Circuit breakers are sized for this number."
    )
