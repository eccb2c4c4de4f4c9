-- A script that does not end loading.
-- expect: refused
-- message: loading used more than
while true do end -- here
