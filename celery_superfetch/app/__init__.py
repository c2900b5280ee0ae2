"""What ``install()`` gives a Celery app in any of its processes: worker, beat, producer, CLI.

Never touches a worker's consumer or pool.
"""
