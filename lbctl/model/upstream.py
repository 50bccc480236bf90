"""`upstream` of a pool: a hosted API, which wants its own host, path and credentials instead of the client's.

`credentials` of a pool: the key that replicas of your own ask for.
"""

from typing import Annotated

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from lbctl.base.diagnostics import show
from lbctl.model import values as v
from lbctl.model.section import OneOf, Section, refuse


class HeaderFile(Section):
    prefix: v.TextOrNone = Field("", description='The text before the content of the file, as "Bearer ".')
    file: v.FilePath = Field(description="The file with the secret. It is read without the white space at its ends.")


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
                "LB013", "this names no file with a secret", '{prefix: "Bearer ", file: PATH}', first["loc"]
            ) from None
    raise refuse("LB013", f"{show(value)} is no header's value", "a text, or {file: PATH} for a secret")


UpstreamHeader = Annotated[
    str | HeaderFile,
    PlainValidator(_header),
    OneOf(_TEXT.json_schema, HeaderFile),
]
"""A text, or the file with a secret."""


class Credentials(Section):
    header: v.HeaderName = Field(description="The header that holds the key, such as authorization.")
    file: v.FilePath = Field(
        description='The file with the whole value of the header, "Bearer " included. It is read without the white '
        "space at its ends."
    )


class Upstream(Section):
    host: v.Host = Field(
        description="The API's own name: sent as Host and as SNI, and compared with the certificate. "
        "`tls.server_name` replaces it for TLS."
    )
    path_prefix: v.UrlPath | None = Field(
        None, description="Stands before the path that the route's `rewrite` leaves. Without it: nothing."
    )
    headers: Annotated[dict[v.HeaderName, UpstreamHeader], *v.HeaderMap.__metadata__] = Field(
        {},
        description="Set on each request to this pool: a text, or `{file: PATH}` for a secret. The client's own "
        "credentials never reach the pool.",
    )
