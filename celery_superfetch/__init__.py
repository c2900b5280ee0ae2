"""Reliable fetch for Celery on Redis and Valkey.

    >>> import celery_superfetch
    >>> celery_superfetch.install(app)
"""

from __future__ import annotations

__version__ = "0.1.0"
