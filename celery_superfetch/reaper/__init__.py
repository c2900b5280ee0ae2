"""Who is dead, and what becomes of the jobs of the dead.

For any process: it claims nothing, needs no owner of its own, and knows nothing of Celery.
"""
