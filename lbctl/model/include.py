"""`proxies.NAME.include`: files with the operator's own lines, and the places of the configuration that they go to."""

from typing import Annotated

from pydantic import Field

from lbctl.model import values as v
from lbctl.model.section import Section

_Files = Annotated[list[v.FilePath], Field(min_length=1)]


class Include(Section):
    """Every path is a file beside the fleet; its lines are put in as they are."""

    http: _Files | None = Field(None, description="For nginx: lines of the `http` block, before the servers.")
    server: dict[v.Name, _Files] | None = Field(
        None, description="For nginx: lines of every `server` block of a listener, before its locations."
    )
    location: dict[v.Name, _Files] | None = Field(
        None,
        description="For nginx: lines of every location of a route, after its credentials and before it is forwarded.",
    )
    global_: _Files | None = Field(
        None, alias="global", description="For HAProxy: lines at the end of the `global` section."
    )
    frontend: dict[v.Name, _Files] | None = Field(
        None,
        description="For HAProxy: lines of the frontend of a listener, after credentials and limits, before its "
        "backend.",
    )
    backend: dict[v.Name, _Files] | None = Field(
        None, description="For HAProxy: lines of every backend of a pool, before its servers."
    )
    http_filters: _Files | None = Field(
        None, description="For Envoy: each file one HTTP filter in YAML (`name`, `typed_config`), before the router."
    )
