
---@param x number
---@param min number
---@param max number
---@return number
function math.clamp(x, min, max) end

---@param x number
---@return integer
function math.round(x) end

---@param x number
---@return integer
function math.sign(x) end

---@param count integer
---@param value any
---@return table
function table.create(count, value) end

---@param list table
---@param value any
---@param from? integer
---@return integer?
function table.find(list, value, from) end

---@param t table
function table.clear(t) end

---@generic T: table
---@param t T
---@return T
function table.clone(t) end

---@generic T: table
---@param t T
---@return T
function table.freeze(t) end

---@param t table
---@return boolean
function table.isfrozen(t) end

---@param text string
---@param separator? string
---@return string[]
function string.split(text, separator) end
