"""The app for worker processes: `celery -A evidence.crash_points.worker`."""

import os

from .tasks import build

app = build(os.environ)
