"""The shop, whose jobs may start however long ago its owner was heard: the control."""

from __future__ import annotations

import os

from celery_superfetch.model import certificate
from support.apps.build import build_app

certificate.HEARTBEATS = 1e6

app = build_app(os.environ)
