-- A script that does not end loading.
-- expect: refused
-- says: loading used more than
while true do end -- here
