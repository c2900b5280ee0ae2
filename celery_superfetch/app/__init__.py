"""Everything that ``install()`` adds to a Celery app: in a worker, beat, a producer, a command.

Never touches a worker's consumer or pool: the package ``worker`` does that. ``install`` is in
``installation.py``.
"""
