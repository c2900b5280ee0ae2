"""A small world, searched exhaustively: two processes, two jobs and one reaper, with the package's
scripts on a real server.

Read ``state.py`` first (what one state consists of), then ``processes.py`` and ``reaping.py`` (the
steps that lead from one state to the next) and ``world.py`` (the harms, and what must hold in each
state). ``keyspace.py`` runs the scripts, ``search.py`` searches, ``mutants.py`` lists the safeties
that are removed.
"""
