"""The shop, in a worker that writes down each call of a function of the package: when (ns, by the
monotonic clock), where, and its name. CALLS names the file. Its pool processes inherit that."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

import celery_superfetch
from support.apps.shop import app  # noqa: F401 - the worker's

ROOT = os.path.dirname(celery_superfetch.__file__) + os.sep
CALLS = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ROOT):
        name = getattr(code, "co_qualname", code.co_name)  # before Python 3.11 without its class
        line = f"{time.monotonic_ns()} {code.co_filename[len(ROOT) :]} {name}\n"
        os.write(CALLS, line.encode())


sys.setprofile(note)
threading.setprofile(note)
