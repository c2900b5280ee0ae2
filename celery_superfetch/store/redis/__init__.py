"""Connections to the Redis server, running scripts by their digest, and checks of the server.

It never reads or moves a job: the rest of ``store/`` does, and names the keys.
"""
