"""A small world, all of it: two processes, two jobs, one reaper, and the real scripts on a real
server."""
