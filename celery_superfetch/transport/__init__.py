"""A kombu transport for Redis, derived from kombu's own: consumers claim jobs and do not pop them.

kombu loads it, in workers, producers and commands: ``app/`` names it as the transport, and
``worker/`` gives its channels what only a worker can do. If the process dies, each job that it has
claimed stays in Redis, and a reaper recovers it. This package never imports Celery.
"""
