"""A pool's `upstream`: a hosted API, which needs its own host, path and credentials instead of the client's.

A pool's `credentials`: the key required by self-hosted replicas.
"""

from typing import Annotated

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from lbctl.base.diagnostics import show
from lbctl.model import values as v
from lbctl.model.section import OneOf, Section, refuse


class HeaderFile(Section):
    prefix: v.TextOrNone = Field("", description='Text in front of the file\'s content, for example "Bearer ".')
    file: v.FilePath = Field(description="File with the secret. Leading and trailing whitespace is removed.")


_TEXT: TypeAdapter[str] = TypeAdapter(v.HeaderValue, config=ConfigDict(defer_build=True))


def _header(value: object) -> str | HeaderFile:
    if isinstance(value, str):
        try:
            return _TEXT.validate_python(value)
        except ValidationError as error:
            raise refuse("LB013", str(error.errors()[0]["msg"]), "use a string, or {file: PATH} for a secret") from None
    if isinstance(value, dict):
        try:
            return HeaderFile.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            raise refuse(
                "LB013", "this map does not name a file with a secret", '{prefix: "Bearer ", file: PATH}', first["loc"]
            ) from None
    raise refuse("LB013", f"{show(value)} is not a header value", "use a string, or {file: PATH} for a secret")


UpstreamHeader = Annotated[
    str | HeaderFile,
    PlainValidator(_header),
    OneOf(_TEXT.json_schema, HeaderFile),
]
"""A string, or a file with a secret."""


class Credentials(Section):
    header: v.HeaderName = Field(description="Header that contains the key, for example authorization.")
    file: v.FilePath = Field(
        description='File with the whole header value, including "Bearer ". Leading and trailing whitespace is removed.'
    )


class Upstream(Section):
    host: v.Host = Field(
        description="Host name of the API, for the Host header, for SNI, and to verify the certificate. For TLS, "
        "`tls.server_name` overrides it."
    )
    path_prefix: v.UrlPath | None = Field(
        None, description="Prefix added to the path after the route's `rewrite`. Default: none."
    )
    headers: Annotated[dict[v.HeaderName, UpstreamHeader], *v.HeaderMap.__metadata__] = Field(
        {},
        description="Headers to set on each request to this pool; a value is a string, or `{file: PATH}` for a secret. "
        "Clients' credentials never reach the pool.",
    )
