-- r1.http: the functions for requests. The host sends them and records the responses.

local send, request, options_of_requests, _, fail = ... -- host

-- Whether a table in the place of a body has options of a request, and nothing else. `query` with a
-- text is a common body.
local function is_options(body)
  local only_query = true
  for name, value in next, body do
    if not table.find(options_of_requests, name) then return false end
    only_query = only_query and name == "query" and type(value) ~= "table"
  end
  return not only_query
end

local http = { request = request }

function http.get(url, options) return send(false, url, options) end

function http.post(url, body, options)
  if options == nil and type(body) == "table" and is_options(body) then
    fail(
      "r1.http.post",
      "the second argument is the body, and these are options",
      "options are the third argument: r1.http.post(url, nil, { json = … }); a body with these fields is text: "
        .. "r1.http.post(url, r1.json.encode { … })"
    )
  end
  return send(true, url, options, body)
end

return http
