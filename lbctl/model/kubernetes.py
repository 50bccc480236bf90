"""`pools.*.discovery.kubernetes`: the endpoints of a Kubernetes service."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema

from lbctl.base.diagnostics import did_you_mean, quoting_hint, show
from lbctl.model import values as v
from lbctl.model.section import Choice, OneOf, Section, refuse

_ENDPOINT = "endpoint"


class LabelSource(Section):
    CHOICES: ClassVar = (Choice(("node_label", "pod_label")),)

    node_label: v.KubernetesLabel | None = Field(None, description="This label of the node that the pod runs on.")
    pod_label: v.KubernetesLabel | None = Field(None, description="This label of the pod.")


def _zone_source(value: object) -> str | LabelSource:
    if isinstance(value, dict):
        try:
            return LabelSource.model_validate(value)
        except ValidationError as error:
            place = error.errors()[0]["loc"]
            raise refuse("LB013", f"{show(value)} is no source of zones", "{node_label: LABEL}", place) from None
    if value != _ENDPOINT:
        hint = did_you_mean(value, (_ENDPOINT,)) if isinstance(value, str) else ""
        raise refuse("LB013", f"{show(value)} is no source of zones", hint or "endpoint or {node_label: LABEL}")
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
    service: v.KubernetesName = Field(description="Each endpoint of this service is a replica.")
    port: Annotated[str, PlainValidator(_port), WithJsonSchema(_PORT_SCHEMA)] | None = Field(
        None,
        description="The name of the service's port, or the number of the pods' port. Without it: the service's only "
        "port.",
    )
    kubeconfig: v.FilePath | None = Field(
        None, description="The kubeconfig with the cluster and the credentials. Without it: those of the own pod."
    )
    context: v.KubernetesContext | None = Field(
        None, description="The context of the kubeconfig. Without it: its current one."
    )
    gpu_from: LabelSource | None = Field(
        None, description="Where the type of a replica's GPU is written. Without it: all replicas have one capacity."
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
        description="Where a replica's zone is written: `endpoint` is what the EndpointSlice says. Without it: none.",
    )
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1024, description="More endpoints are left out; circuit breakers are sized for this number."
    )
