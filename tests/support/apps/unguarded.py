"""The shop, whose jobs start whatever became of them: the control for what the gate guards."""

from __future__ import annotations

import os
from time import monotonic

from celery_superfetch.worker.start import _Handover
from support.apps.build import build_app

_Handover.is_ours = property(lambda _: True)
_Handover.may_begin = lambda _: monotonic() + 60.0
app = build_app(os.environ)
