"""Names of the fleet's own objects and of objects in other systems."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import PlainValidator

from lbctl.base.diagnostics import quoting_hint, show
from lbctl.model.section import refuse
from lbctl.model.values.grammar import schema, text

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
Name = Annotated[
    str,
    *text(
        NAME.pattern,
        "a name",
        "lowercase letters, digits and . _ -, at most 63 characters; must start with a letter or digit",
    ),
]
Place = Annotated[str, *text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "a region or zone name", "letters, digits and . _ -")]
Gpu = Annotated[
    str, *text(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,62}", "a GPU type", "for example H100-SXM; `lbctl gpus` lists them")
]
_MODEL = r"[^\x00- \x7f*](?:[^\x00-\x1f\x7f*]{0,253}[^\x00- \x7f*])?"
_MODEL_PATTERN = rf"{_MODEL}|[^\x00- \x7f*][^\x00-\x1f\x7f*]{{0,254}}\*"
_MODEL_HINT = "printable text without * and without leading or trailing spaces, at most 255 characters"
_PATTERN_HINT = "printable text, at most 255 characters; a * at the end matches any text"


def _model(pattern: str, noun: str, hint: str) -> tuple[PlainValidator, object]:
    """Return the type for a name chosen by engines and clients: any printable text, which the targets quote."""
    whole = re.compile(pattern)

    def validate(value: object) -> str:
        if not isinstance(value, str):
            raise refuse("LB013", f"{show(value)} is not a string", quoting_hint(value))
        if not whole.fullmatch(value) or not value.isprintable():
            raise refuse("LB013", f"{show(value)} is not {noun}", hint)
        return value

    return PlainValidator(validate), schema(pattern, f"{noun}: {hint}")


ModelName = Annotated[str, *_model(_MODEL, "a model name", _MODEL_HINT)]
ModelPattern = Annotated[str, *_model(_MODEL_PATTERN, "a model name pattern", _PATTERN_HINT)]
Label = Annotated[str, *text(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", "a label", "letters, digits and . _ / -")]
LabelValue = Annotated[
    str, *text(r"[A-Za-z0-9._/:@+ -]{0,253}", "a label value", "letters, digits, spaces and . _ / : @ + -")
]
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
PORT_NAME = re.compile(r"(?!.*--)(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?", re.ASCII)
"""Pattern for the name of a Kubernetes port."""
KubernetesName = Annotated[
    str,
    *text(
        _DNS_LABEL,
        "a Kubernetes name",
        "lowercase letters, digits and -, at most 63 characters; must not start or end with -",
    ),
]
_DNS_NAME = rf"{_DNS_LABEL}(\.{_DNS_LABEL}){{0,30}}"
KubernetesObject = Annotated[
    str,
    *text(_DNS_NAME, "the name of a Kubernetes object", "lowercase letters, digits, - and .; for example edge-tls"),
]
KubernetesReference = Annotated[
    str,
    *text(rf"({_DNS_LABEL}/)?{_DNS_NAME}", "a reference to a Kubernetes object", "write NAME or NAMESPACE/NAME"),
]
KubernetesLabel = Annotated[
    str,
    *text(
        rf"({_DNS_NAME}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?",
        "a Kubernetes label name",
        "for example nvidia.com/gpu.product",
    ),
]
KubernetesLabelValue = Annotated[
    str,
    *text(
        r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
        "the value of a Kubernetes label",
        "letters, digits and . _ -, at most 63",
    ),
]
KubernetesContext = Annotated[
    str, *text(r"[A-Za-z0-9._:/@+=,~-]{1,253}", "a kubeconfig context name", "letters, digits and . _ : / @ + = , ~ -")
]
Device = Annotated[
    str,
    *text(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}(:[0-9]{1,3})?",
        "a device",
        'an index such as "0", a UUID such as GPU-…, or a MIG slice such as "0:3" (GPU instance 3 of GPU 0)',
    ),
]
Account = Annotated[str, *text(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "a system user or group", "letters, digits and _ . -")]
Word = Annotated[str, *text(r"[!-~]{1,512}", "a word", "printable ASCII without spaces, at most 512 characters")]
Issuer = Annotated[
    str,
    *text(
        r"[A-Za-z0-9._~:/?#\[\]@!&()*+,;=-]{1,512}",
        "a token issuer or audience",
        "a URL, or a word that consists of URL characters",
    ),
]
Realm = Annotated[
    str,
    *text(
        r"[A-Za-z0-9](?:[A-Za-z0-9 ._:/@+-]{0,62}[A-Za-z0-9])?", "a realm", "letters, digits, spaces and . _ : / @ + -"
    ),
]
Claim = Annotated[str, *text(r"[A-Za-z0-9_]{1,64}", "a claim", "letters, digits and _")]
_SERVICE = r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}"
Service = Annotated[str, *text(_SERVICE, "a service name", "letters, digits and _ . / -")]
ServiceOrNone = Annotated[str, *text(f"({_SERVICE})?", "a service name", "letters, digits and _ . / -")]
NodePattern = Annotated[
    str, *text(r"[A-Za-z0-9._*?/:-]{1,253}", "a node ID pattern", "letters, digits and . _ / : - * ?")
]
LabelMatch = Annotated[str, *text(r"[ -~]{0,253}", "a metric label value", "printable ASCII, at most 253 characters")]
Metric = Annotated[str, *text(r"[A-Za-z_:][A-Za-z0-9_:]{0,199}", "a metric name", "letters, digits, _ and :")]
StoreUser = Annotated[str, *text(r"[A-Za-z0-9._@-]{1,128}", "a user", "letters, digits and . _ @ -")]
KeyPrefix = Annotated[str, *text(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", "a key prefix", "for example lbctl:prod")]
