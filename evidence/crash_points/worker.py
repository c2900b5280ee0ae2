"""Build the app of a worker process. `lane.py` starts `celery -A evidence.crash_points.worker`."""

import os

from .tasks import build

app = build(os.environ)
