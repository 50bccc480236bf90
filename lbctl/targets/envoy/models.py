"""The check that a request names its model unambiguously, for routing where authentication depends on the model.

If a key is repeated, Envoy's JSON filter uses the last value. That filter ignores a body that is not JSON or not
declared as JSON. A replica may interpret such a body differently. For this reason, a Lua script parses the whole body
according to the JSON grammar. If the model is unambiguous, it marks the request's metadata, and the routes require that
mark. The script is fixed and independent of the fleet. If the script fails, the mark is missing, and the response is
400.
"""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2

from lbctl.ir.listeners import Listener
from lbctl.targets.envoy.matches import CODED
from lbctl.targets.envoy.protos import extension
from lbctl.targets.envoy.sources import NAMESPACE
from lbctl.targets.reading import MODEL_HEADER, wants_clear_model

_FILTER = "lbctl.clear_model"
_CLEAR = "model_clear"
_SCRIPT = (
    r"""
local function past_space(text, at)
  return text:match('^[ \t\r\n]*()', at)
end

local function past_string(text, at)
  if text:byte(at) ~= 34 then return end
  repeat
    at = text:find('[%z\1-\31"\\]', at + 1)
    local byte = at and text:byte(at)
    if byte == 34 then return at + 1 end
    if byte ~= 92 then return end
    if not text:find('^["\\/bfnrt]', at + 1) then
      if not text:find('^u%x%x%x%x', at + 1) then return end
    end
    at = at + 1
  until false
end

local function past_number(text, at)
  at = text:match('^%-?0()', at) or text:match('^%-?[1-9]%d*()', at)
  at = at and (text:match('^%.%d+()', at) or at)
  return at and (text:match('^[eE][+-]?%d+()', at) or at)
end

local function past_scalar(text, at)
  local byte = text:byte(at)
  if byte == 34 then return past_string(text, at) end
  return text:match('^true()', at) or text:match('^false()', at) or text:match('^null()', at) or past_number(text, at)
end

local function past_key(text, at)
  at = past_string(text, at)
  at = at and text:match('^[ \t\r\n]*:[ \t\r\n]*()', at)
  return at
end

local function past_value(text, at)
  local closers, depth = {}, 0
  repeat
    local byte, after = text:byte(at), nil
    if byte == 123 or byte == 91 then
      at = past_space(text, at + 1)
      if text:byte(at) == byte + 2 then
        after = at + 1
      else
        depth = depth + 1
        closers[depth] = byte + 2
        if byte == 123 then at = past_key(text, at) end
      end
    else
      after = past_scalar(text, at)
      if not after then return end
    end
    while after do
      if depth == 0 then return after end
      at = past_space(text, after)
      byte, after = text:byte(at), nil
      if byte == closers[depth] then
        depth = depth - 1
        after = at + 1
      elseif byte == 44 then
        at = past_space(text, at + 1)
        if closers[depth] == 125 then at = past_key(text, at) end
      else
        return
      end
    end
  until not at
end

local function model_in(text)
  local at, model = text:match('^[ \t\r\n]*{[ \t\r\n]*()'), nil
  local more = at and text:byte(at) ~= 125
  while more do
    local stop, from = past_string(text, at), past_key(text, at)
    local to = from and past_value(text, from)
    if not to then return false end
    local key = text:sub(at + 1, stop - 2)
    if key:find('\\', 1, true) then return false end
    if key:lower() == 'model' then
      if model or key ~= 'model' or text:byte(from) ~= 34 then return false end
      model = text:sub(from + 1, to - 2):gsub('\\/', '/')
      if model:find('\\', 1, true) then return false end
    end
    at = past_space(text, to)
    more = text:byte(at) == 44
    if more then at = past_space(text, at + 1) end
  end
  if not at or text:byte(at) ~= 125 or past_space(text, at + 1) ~= #text + 1 then return false end
  return true, model
end

local function is_json(kind)
  if not kind then return true end
  local name, more = kind:lower():match('^([^; ]*) *;? *(.-) *$')
  if more ~= '' and not more:find('^charset="?utf%-?8"?$') then return false end
  return name == 'application/json' or name:find('^application/[%w._-]+%+json$') ~= nil
end

local function names_model(path)
  local query = path:match('%?(.*)') or ''
  query = query:gsub('+', ' '):gsub('%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end)
  return ('&' .. query:lower() .. '&'):find('[&;]%s*model%s*[=%[&;]') ~= nil
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local method, coding, named = headers:get(':method'), headers:get('content-encoding'), headers:get('HEADER')
  if method == 'GET' and names_model(headers:get(':path')) then return end
  local plain = is_json(headers:get('content-type')) and (not coding or coding:lower() == 'identity')
  if headers:getNumValues('HEADER') > 1 or not (plain or method == 'GET' or method == 'HEAD') then return end
  local body, metadata = handle:body(), handle:streamInfo():dynamicMetadata()
  local coded = (metadata:get('NAMESPACE') or {})['CODED']
  if coded and coded:lower() ~= 'identity' and (not body or body:length() == 0) then return end
  if body and body:length() > 0 then
    local clear, model = model_in(body:getBytes(0, body:length()))
    if not plain or not clear then return end
    if model and model ~= '' then
      if named and named ~= model then return end
      metadata:set('NAMESPACE', 'model', model)
    end
  end
  metadata:set('NAMESPACE', 'CLEAR', true)
  handle:clearRouteCache()
end
""".lstrip()
    .replace("NAMESPACE", NAMESPACE)
    .replace("HEADER", MODEL_HEADER)
    .replace("CLEAR", _CLEAR)
    .replace("CODED", CODED)
)


def http_filters(listener: Listener) -> list[dict[str, object]]:
    """Return the filter if a rule of the listener requires an unambiguous model.

    The filter runs after the JSON filter and corrects the value that the JSON filter stored.
    """
    if not wants_clear_model(listener):
        return []
    return [extension(_FILTER, lua_pb2.Lua(default_source_code={"inline_string": _SCRIPT}))]


def unclear(match: route_components_pb2.RouteMatch) -> route_components_pb2.RouteMatch:
    """Return the match restricted to requests whose model is ambiguous.

    The model of a WebSocket request is always ambiguous.
    """
    narrowed = route_components_pb2.RouteMatch()
    narrowed.CopyFrom(match)
    narrowed.dynamic_metadata.add(filter=NAMESPACE, path=[{"key": _CLEAR}], value={"bool_match": True}, invert=True)
    return narrowed
