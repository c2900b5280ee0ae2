"""The shop for worker processes: `celery -A support.apps.shop`, configured by the environment."""

from __future__ import annotations

import os

from support.apps.build import build_app

app = build_app(os.environ)
