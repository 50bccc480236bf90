"""The beginning of a prompt as a hash key: requests with the same beginning go to the replica that has cached it.

Envoy's own filters extract short values from JSON bodies, but nothing from lists; prompts are long, and chats are
lists. For this reason lbctl uses a Lua script, which is fixed and independent of the fleet. The script leaves the body
unchanged. The script stores one key in the request's metadata for each length in bytes that the route's pools need.
"""

from __future__ import annotations

from typing import Any

from envoy.extensions.filters.http.lua.v3 import lua_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import hashing
from lbctl.targets.envoy.protos import extension, pack
from lbctl.targets.envoy.sources import NAMESPACE

_FILTER = "envoy.filters.http.lua"
_SCRIPT = r"""
local function string_end(text, at)
  repeat
    at = text:find('["\\]', at + 1)
    if at and text:byte(at) == 92 then at = at + 1 else return at end
  until false
end

local function value_end(text, at)
  local first = text:byte(at)
  if first == 34 then return string_end(text, at) end
  if first ~= 123 and first ~= 91 then
    local stop = text:find('[%s,%]}]', at)
    return stop and stop - 1
  end
  local depth = 0
  repeat
    local found = text:byte(at)
    if found == 34 then at = string_end(text, at)
    elseif found == 123 or found == 91 then depth = depth + 1
    else depth = depth - 1 end
    if not at or depth == 0 then return at end
    at = text:find('["{}%[%]]', at + 1)
  until not at
end

local function members(text, at, each)
  at = text:match('^%s*{%s*()', at)
  while at and text:byte(at) == 34 do
    local stop = string_end(text, at)
    local from = stop and text:match('^%s*:%s*()', stop + 1)
    local to = from and value_end(text, from)
    if not to then return end
    each(text:sub(at + 1, stop - 1), from, to)
    at = text:match('^%s*,%s*()', to + 1)
  end
end

local function bare(text, from, to)
  if text:byte(from) == 34 then return (text:sub(from + 1, to - 1):gsub('\\/', '/')) end
  return text:sub(from, to)
end

local function first_messages(text, at)
  local found
  at = text:match('^%[%s*()', at)
  for _ = 1, 2 do
    local to = at and value_end(text, at)
    if not to then break end
    members(text, at, function(name, from, stop)
      if name == 'content' then found = (found or '') .. bare(text, from, stop) end
    end)
    at = text:match('^%s*,%s*()', to + 1)
  end
  return found
end

local function beginning(text)
  local model, prompt, messages = '', nil, nil
  members(text, 1, function(name, from, to)
    if name == 'model' then model = bare(text, from, to)
    elseif name == 'prompt' then prompt = bare(text, from, to)
    elseif name == 'messages' then messages = first_messages(text, from) end
  end)
  return model, prompt or messages
end

function envoy_on_request(handle)
  local lengths = handle:filterContext():get('bytes')
  local method = handle:headers():get(':method')
  if not lengths or method == 'GET' or method == 'HEAD' or method == 'CONNECT' then return end
  local body = handle:body()
  if not body then return end
  local model, words = beginning(body:getBytes(0, body:length()))
  if not words then return end
  for _, length in ipairs(lengths) do
    local key = model .. ' ' .. words:sub(1, length)
    handle:streamInfo():dynamicMetadata():set('NAMESPACE', string.format('prompt.%d', length), handle:base64Escape(key))
  end
end
""".lstrip().replace("NAMESPACE", NAMESPACE)


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filter, if a route of the listener needs it. The filter acts only on routes that configure it."""
    if not any(_lengths(view, view.routes[rule.route]) for rule in listener.rules):
        return []
    config = lua_pb2.Lua(default_source_code={"inline_string": _SCRIPT}, clear_route_cache={"value": False})
    return [extension(_FILTER, config)]


def per_route(view: View, route: Route) -> dict[str, Any]:
    """Return the filter configuration of a route: the lengths of the keys that its pools need."""
    lengths = _lengths(view, route)
    if not lengths:
        return {}
    config = lua_pb2.LuaPerRoute()
    config.filter_context.update({"bytes": lengths})
    return {_FILTER: pack(config)}


def _lengths(view: View, route: Route) -> list[int]:
    """Return the lengths in bytes of the keys that the route's pools need.

    A gRPC stream is not JSON and cannot be buffered.
    """
    if not isinstance(route.action, Forward):
        return []
    pools = [name for name in route.action.pools if view.pools[name].protocol != "grpc"]
    return sorted({key.bytes for key in hashing.keys(view, pools) if key.kind == "prompt_prefix"})
