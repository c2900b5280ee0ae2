"""Connects to the Redis server, runs scripts on it by their digest (EVALSHA), and checks it.

The classes of ``store/`` send their calls by it; ``transport/`` and ``owner/`` make their
connections with it. If the process dies, its connections close, and no key has to be removed. It
never reads or moves a job, and names no key of one: the rest of ``store/`` does.
"""
