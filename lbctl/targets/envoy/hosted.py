"""Pools with their own headers: filters that modify a request for its pool after Envoy has chosen a host.

A route with a fallback uses an aggregate cluster, so the pool is known only after Envoy has chosen a host, anew for
each attempt. For this reason the filters belong to the cluster and run after that choice. The host's metadata names its
pool, and lbctl's script changes the request only for that pool. Envoy uses the filters of the cluster that the route
names, so an aggregate cluster has the filters of all its pools. All attempts share one set of headers: if a later
attempt goes to another pool, it gets the original headers. In names, `_` is treated as `-`, because many servers do not
distinguish them.

A secret is delivered by SDS and does not appear in configuration dumps: `credential_injector` writes it into an
internal header, which the script moves or removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envoy.extensions.filters.http.credential_injector.v3 import credential_injector_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.filters.http.upstream_codec.v3 import upstream_codec_pb2
from envoy.extensions.http.injected_credentials.generic.v3 import generic_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import INTERNAL_PREFIX
from lbctl.targets.envoy.protos import extension
from lbctl.targets.envoy.sources import NAMESPACE
from lbctl.targets.envoy.tls import SecretSource
from lbctl.targets.hosted import HostedPool
from lbctl.targets.token import lua_string

Sent = tuple[str, str]
"""A pool and the name of a header whose value is a secret."""
CHOSEN = "upstream"
"""Metadata key for the pool of a host, if the pool has its own headers."""
_CHOSEN_HEADER = f"{INTERNAL_PREFIX}upstream"
_SECRET_HEADER = f"{INTERNAL_PREFIX}secret-"
_SCRIPT = """\
local pools = {%(pools)s}
local secrets = {%(secrets)s}
local removed = {%(removed)s}
local kept = "lbctl.original"

local function changed(headers)
  local names = {}
  for name in pairs(headers) do
    if removed[string.gsub(name, "_", "-")] then
      names[name] = true
    end
  end
  names[":authority"], names[":path"] = true, true
  return names
end

local function restore(headers, original)
  for name in pairs(changed(headers)) do
    if original[name] == nil then
      headers:remove(name)
    end
  end
  for name, value in pairs(original) do
    headers:replace(name, value)
  end
end

local function keep(headers, metadata)
  for name in pairs(changed(headers)) do
    metadata:set(kept, name, headers:get(name))
  end
end

function envoy_on_request(handle)
  local headers, metadata = handle:headers(), handle:streamInfo():dynamicMetadata()
  local pool, values = pools[headers:get("%(chosen)s")], {}
  headers:remove("%(chosen)s")
  for _, name in ipairs(secrets) do
    values[name] = headers:get(name)
    headers:remove(name)
  end
  local original = metadata:get(kept)
  if original ~= nil then
    restore(headers, original)
  end
  if pool == nil then
    return
  end
  if original == nil then
    keep(headers, metadata)
  end
  for name in pairs(changed(headers)) do
    if string.sub(name, 1, 1) ~= ":" then
      headers:remove(name)
    end
  end
  if pool.host ~= "" then
    headers:replace(":authority", pool.host)
  end
  headers:replace(":path", pool.prefix .. headers:get(":path"))
  for name, value in pairs(pool.texts) do
    headers:replace(name, value)
  end
  for name, secret in pairs(pool.secrets) do
    if values[secret] ~= nil then
      headers:replace(name, values[secret])
    end
  end
end
"""


def http_filters(pools: Sequence[HostedPool], keys: SecretSource) -> list[dict[str, object]]:
    """Return the filters of a cluster that serves these pools with their own headers; empty without pools."""
    if not pools:
        return []
    sent = list(_sent(pools))
    chosen = {
        "header": {"key": _CHOSEN_HEADER, "value": f"%UPSTREAM_METADATA({NAMESPACE}:{CHOSEN})%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        "keep_empty_value": True,
    }
    mutation = header_mutation_pb2.HeaderMutation(mutations={"request_mutations": [{"append": chosen}]})
    script = lua_pb2.Lua(default_source_code={"inline_string": _script(pools, sent)})
    return [
        *(_injector(keys.header(*item), number) for number, item in enumerate(sent)),
        extension("envoy.filters.http.header_mutation", mutation),
        extension("envoy.filters.http.lua", script),
        extension("envoy.filters.http.upstream_codec", upstream_codec_pb2.UpstreamCodec()),
    ]


def secrets(view: View) -> Iterator[tuple[str, str, str]]:
    """Yield the pool, header and value of each secret in the view."""
    for name, pool in view.pools.items():
        files = {header.name for header in pool.sent.headers if header.file} if pool.sent else ()
        yield from ((name, header, value) for header, value in view.upstream_headers.get(name, ()) if header in files)


def secret(name: str, value: str) -> secret_pb2.Secret:
    """Return the value of a header as a secret."""
    return secret_pb2.Secret(name=name, generic_secret={"secret": {"inline_string": value}})


def _sent(pools: Sequence[HostedPool]) -> Iterator[Sent]:
    for pool in pools:
        yield from ((pool.pool, header.name) for header in pool.headers if header.file)


def _injector(source: dict[str, object], number: int) -> dict[str, object]:
    """Return the filter that writes a secret into an internal header. If the secret is missing, it writes nothing."""
    credential = generic_pb2.Generic(credential=source, header=f"{_SECRET_HEADER}{number}")
    config = credential_injector_pb2.CredentialInjector(
        overwrite=True,
        allow_request_without_credential=True,
        credential=extension("envoy.http.injected_credentials.generic", credential),
    )
    return extension("envoy.filters.http.credential_injector", config)


def _script(pools: Sequence[HostedPool], sent: Sequence[Sent]) -> str:
    removed = sorted({name.replace("_", "-") for pool in pools for name in pool.removed})
    return _SCRIPT % {
        "pools": ", ".join(_pool(pool, sent) for pool in pools),
        "secrets": _list(f"{_SECRET_HEADER}{number}" for number in range(len(sent))),
        "removed": ", ".join(f"[{lua_string(name)}] = true" for name in removed),
        "chosen": _CHOSEN_HEADER,
    }


def _pool(pool: HostedPool, sent: Sequence[Sent]) -> str:
    headers = pool.headers
    texts = ((header.name, header.text) for header in headers if header.file is None)
    injected = (
        (header.name, f"{_SECRET_HEADER}{sent.index((pool.pool, header.name))}")
        for header in headers
        if header.file is not None
    )
    fields = {
        "host": lua_string(pool.upstream.host),
        "prefix": lua_string(pool.upstream.path_prefix),
        "texts": _map(texts),
        "secrets": _map(injected),
    }
    return f"[{lua_string(pool.pool)}] = {{{', '.join(f'{key} = {value}' for key, value in fields.items())}}}"


def _list(items: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(map(lua_string, items))


def _map(items: Iterator[tuple[str, str]]) -> str:
    return f"{{{', '.join(f'[{lua_string(key)}] = {lua_string(value)}' for key, value in items)}}}"
