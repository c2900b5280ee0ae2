"""A shop on Django. The Celery app is imported here, so that `shared_task` finds it in each process
that Django starts."""

from .celery import app as celery_app

__all__ = ["celery_app"]
