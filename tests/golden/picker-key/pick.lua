-- Asks the picker for a replica. Whatever goes wrong, no replica is named, and HAProxy chooses by itself.
local HOST, PORT, PROXY, PAUSE = "127.0.0.1", 18002, "haproxy", 1000
local QUESTIONS = {
  { target = "/pick/llama", timeout = 200, body = 0 == 1, tenant = 1 == 1, slots = "", headers = { "x-session-id", } },
}
local KEY = Map.new("haproxy-upstream-headers.map", Map._str):lookup(":picker")
local LONGEST_HEADER, LONGEST_LINE, MOST_LINES = 4096, 1024, 32

local function milliseconds()
  local now = core.now()
  return now.sec * 1000 + math.floor(now.usec / 1000)
end

local function first(headers, name)
  return headers[name] and headers[name][0] or ""
end

local function is_header_value(value)
  return #value <= LONGEST_HEADER and not value:find("[%c]")
end

local function add_session(request, headers, question)
  for _, name in ipairs(question.headers) do
    local value = first(headers, name)
    if value ~= "" and is_header_value(value) then
      request[#request + 1] = name .. ": " .. value
    end
  end
end

-- The request to the picker; nothing where its tenant cannot be named.
local function written(txn, question, id)
  local headers = txn.http:req_get_headers()
  local has_body = question.body and first(headers, "content-type"):lower():find("^application/json") ~= nil
  local body = has_body and txn.sf:req_body() or ""
  local method = has_body and "POST " or "GET "
  local request = { method .. question.target .. " HTTP/1.0", "host: " .. HOST, "x-lbctl-proxy: " .. PROXY }
  if KEY then
    request[#request + 1] = "x-lbctl-pick-key: " .. KEY
  end
  if question.tenant then
    local tenant = txn:get_var("txn.tenant") or ""
    if not is_header_value(tenant) then
      return nil
    end
    request[#request + 1] = "x-lbctl-tenant: " .. tenant
  end
  add_session(request, headers, question)
  request[#request + 1] = "x-lbctl-pick-id: " .. id
  request[#request + 1] = "x-lbctl-body-length: " .. (first(headers, "content-length"):match("^%d+$") or #body)
  if has_body then
    request[#request + 1] = "content-length: " .. #body
  end
  return table.concat(request, "\r\n") .. "\r\n\r\n" .. body
end

-- A line of the answer; a picker that sends byte by byte has no more time than one that sends nothing.
local function line_of(socket, deadline)
  local line = {}
  while #line < LONGEST_LINE do
    local left = deadline - milliseconds()
    if left <= 0 then
      return nil
    end
    socket:settimeout(left / 1000)
    local byte = socket:receive(1)
    if not byte then
      return nil
    end
    if byte == "\n" then
      return (table.concat(line):gsub("\r$", ""))
    end
    line[#line + 1] = byte
  end
  return nil
end

-- The replica; whether the picker answered at all.
local function answer_of(socket, deadline)
  local status = line_of(socket, deadline)
  if not status then
    return nil, false
  end
  if not status:find("^HTTP/1%.[01] 200 ") then
    return nil, true
  end
  local replica
  for _ = 1, MOST_LINES do
    local line = line_of(socket, deadline)
    if not line then
      return nil, false
    end
    if line == "" then
      break
    end
    replica = line:match("^x%-lbctl%-pick: ([a-z0-9][a-z0-9._-]*)$") or replica
  end
  return replica, true
end

local function ask(request, timeout)
  local deadline = milliseconds() + timeout
  local socket = core.tcp()
  socket:settimeout(timeout / 1000)
  local replica, answered = nil, false
  if socket:connect(HOST, PORT) and socket:send(request) then
    replica, answered = answer_of(socket, deadline)
  end
  socket:close()
  return replica, answered
end

-- The server that a replica is: its slot, if it has one.
local function server_of(replica, slots)
  return replica
end

core.register_action("lbctl_pick", { "http-req" }, function(txn, number)
  local question = QUESTIONS[tonumber(number)]
  local now, paused = milliseconds(), txn:get_var("proc.pick_pause") or 0
  if now < paused then
    return
  end
  if paused > 0 then -- one request asks again, the others wait for what it learns
    txn:set_var("proc.pick_pause", now + question.timeout + PAUSE)
  end
  local id = txn.f:uuid()
  local request = written(txn, question, id)
  if not request then
    return
  end
  txn:set_var("txn.pick_id", id) -- before the question: a client that leaves meanwhile ends this function
  local replica, answered = ask(request, question.timeout)
  if not answered then
    txn:set_var("proc.pick_pause", milliseconds() + PAUSE)
    txn:set_var("txn.pick_id", "late-" .. id) -- it may still be answered, and nobody follows it
    return
  end
  if paused > 0 then
    txn:set_var("proc.pick_pause", 0)
  end
  if replica then
    txn:set_var("txn.pick", server_of(replica, question.slots))
  else
    txn:unset_var("txn.pick_id")
  end
end, 1)
