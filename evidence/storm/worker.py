"""What the storm's workers load: `celery -A evidence.storm.worker worker`."""

import faulthandler
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from ..history import History
from .tasks import build


def print_greenlets(*_: Any) -> None:
    """Write where each greenlet is to the worker's log."""
    from gevent.util import print_run_info

    print_run_info(file=sys.__stderr__)


# For a job that has no end: `Fleet.show_stacks` asks where each process is.
if "gevent.monkey" in sys.modules:
    signal.signal(signal.SIGUSR2, print_greenlets)
else:
    faulthandler.register(signal.SIGUSR2)

app = build(os.environ)
# Whom a strike means: it names an owner by its host and the pid of its main process.
History(Path(os.environ["HISTORY"]), new=False).write(
    "main", worker=os.environ["WORKER"], host=socket.gethostname(), pid=os.getpid()
)
