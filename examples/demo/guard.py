"""Become another program that dies with the demo: `guard.py PARENT_PID command ...`.

A demo that is killed with SIGKILL cannot clean up; on Linux the kernel then takes its children
along. A script of its own, since Python code between fork and exec may deadlock once the parent
has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked: nobody would tell us any more
            os.kill(os.getpid(), signal.SIGKILL)
    # Python ignores SIGPIPE, and what is ignored is inherited: give the program the default.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
