"""The data in Redis: each class is one structure, with its keys and its Lua scripts.

All other packages read and write Redis by it, the console through ``inspector.py``. None of them
names a key, a command or a script (``migration/`` names the keys of stock kombu). It decides
nothing: its callers do. A script moves a job as a whole or not at all, so if a process dies, the
job is in one place; each file says in which.
"""
