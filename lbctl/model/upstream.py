"""`upstream` of a pool: a hosted API, which needs its own host, path and credentials instead of the client's.

`credentials` of a pool: the key that self-hosted replicas require.
"""

from typing import Annotated

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from lbctl.base.diagnostics import show
from lbctl.model import values as v
from lbctl.model.section import OneOf, Section, refuse


class HeaderFile(Section):
    prefix: v.TextOrNone = Field("", description='Text in front of the content of the file, for example "Bearer ".')
    file: v.FilePath = Field(description="File with the secret. White space at its ends is removed.")


_TEXT: TypeAdapter[str] = TypeAdapter(v.HeaderValue, config=ConfigDict(defer_build=True))


def _header(value: object) -> str | HeaderFile:
    if isinstance(value, str):
        try:
            return _TEXT.validate_python(value)
        except ValidationError as error:
            raise refuse("LB013", str(error.errors()[0]["msg"]), "or {file: PATH} for a secret") from None
    if isinstance(value, dict):
        try:
            return HeaderFile.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            raise refuse(
                "LB013", "this does not name a file with a secret", '{prefix: "Bearer ", file: PATH}', first["loc"]
            ) from None
    raise refuse("LB013", f"{show(value)} is not a header value", "a text, or {file: PATH} for a secret")


UpstreamHeader = Annotated[
    str | HeaderFile,
    PlainValidator(_header),
    OneOf(_TEXT.json_schema, HeaderFile),
]
"""A text, or a file with a secret."""


class Credentials(Section):
    header: v.HeaderName = Field(description="Header with the key, for example authorization.")
    file: v.FilePath = Field(
        description='The file with the whole value of the header, "Bearer " included. It is read without the white '
        "space at its ends."
    )


class Upstream(Section):
    host: v.Host = Field(
        description="Host name of the API, for the Host header, for SNI, and to verify the certificate. "
        "`tls.server_name` replaces it for TLS."
    )
    path_prefix: v.UrlPath | None = Field(
        None, description="Prefix of the path, after the route's `rewrite`. Default: none."
    )
    headers: Annotated[dict[v.HeaderName, UpstreamHeader], *v.HeaderMap.__metadata__] = Field(
        {},
        description="Headers for each request to this pool: a text, or `{file: PATH}` for a secret. Credentials of "
        "clients never reach the pool.",
    )
