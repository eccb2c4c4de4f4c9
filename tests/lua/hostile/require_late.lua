-- require after loading, of files that are not the script's.
-- expect: env_error
-- message: after loading: require modules at the top of the script
return {
  reset = function()
    pcall(require, "../../etc/passwd")
    pcall(require, "/etc/passwd")
    pcall(require, string.rep("a/", 100000))
    pcall(require, "a\0b")
    require("other") -- here
  end,
}
