--- SQL in ReTool's tags: the policy writes `<code>SELECT …</code>` and stops; the result of the
--- tool `sql` (r1.tools.table) follows in the same turn as `<interpreter>…</interpreter>`.

local tagged = require("@r1/formats/tagged")

return tagged {
  name = "sql",
  tag = "code",
  tool = "sql",
  argument = "sql",
  empty = "The query is empty.",
  result = function(text) return `<interpreter>{text}</interpreter>` end,
  schema = "Write <code>SELECT …</code> to query the table t; the result follows as <interpreter>…</interpreter>.",
}
