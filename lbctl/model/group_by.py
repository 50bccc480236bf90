"""`by`: which requests belong together for rate limits and queues."""

from typing import Annotated

from pydantic import Field, PlainValidator, ValidationError

from lbctl.base.diagnostics import did_you_mean, show
from lbctl.model import values as v
from lbctl.model.section import OneOf, Section, refuse

_WORDS = ("tenant", "client_ip", "all")


class HeaderKey(Section):
    header: v.HeaderName = Field(description="Requests with the same value in this header form a group.")


def _group_by(value: object) -> str | HeaderKey:
    if isinstance(value, dict):
        try:
            return HeaderKey.model_validate(value)
        except ValidationError as error:
            place = error.errors()[0]["loc"]
            raise refuse("LB013", f"{show(value)} is not an allowed value for `by`", "{header: NAME}", place) from None
    if value not in _WORDS:
        hint = did_you_mean(value, _WORDS) if isinstance(value, str) else ""
        raise refuse(
            "LB013",
            f"{show(value)} is not an allowed value for `by`",
            hint or "use tenant, client_ip, all or {header: NAME}",
        )
    return str(value)


GroupBy = Annotated[
    str | HeaderKey,
    PlainValidator(_group_by),
    OneOf({"enum": list(_WORDS)}, HeaderKey),
]
"""A keyword, or a header whose values form the groups."""
