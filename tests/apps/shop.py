"""The shop for worker processes: `celery -A apps.shop worker`, configured by the environment."""

from __future__ import annotations

import os

from apps.build import build_app

app = build_app(os.environ)
