"""Build the app of a storm's worker. `fleet.py` starts `celery -A evidence.storm.worker worker`.

The module also makes the worker write its stacks upon a signal, and writes its host and pid to the
history.
"""

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
    """Write the stack of each greenlet to the worker's log."""
    from gevent.util import print_run_info

    print_run_info(file=sys.__stderr__)


# If a job never ends, `Fleet.show_stacks` sends this signal to find where each process hangs.
if "gevent.monkey" in sys.modules:
    signal.signal(signal.SIGUSR2, print_greenlets)
else:
    faulthandler.register(signal.SIGUSR2)

app = build(os.environ)
# A strike names an owner by its host and the pid of its main process. Without this line,
# `strikes.py` could not say which worker that was.
History(Path(os.environ["HISTORY"]), new=False).write(
    "main", worker=os.environ["WORKER"], host=socket.gethostname(), pid=os.getpid()
)
