--- The tool-call format of Search-R1 (arXiv:2503.09516): the policy writes `<search>query</search>`
--- and stops; the results follow in the same turn as `<information>…</information>`.

local tagged = require("@r1/formats/tagged")

return tagged {
  name = "search_r1",
  tag = "search",
  tool = "search",
  argument = "query",
  empty = "The search is empty.",
  result = function(text) return `\n\n<information>{text}</information>\n\n` end,
  schema = "Write <search>words</search> to look something up; what is found follows as <information>…</information>.",
}
