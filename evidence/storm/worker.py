"""What the storm's workers load: `celery -A evidence.storm.worker worker`."""

import os

from .tasks import build

app = build(os.environ)
