"""Real servers, real workers, real `kill -9`: what the tests stand on.

Nothing here imports celery_superfetch, so the harness can judge it from outside.
"""
