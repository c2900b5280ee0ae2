"""Become another program that dies with the process that started it (Linux; elsewhere: just exec).

Run as a script: `guarded.py [--parent PID] [--hostname NAME] -- command ...`. A pytest that is
killed with SIGKILL runs no finalizers, so only the kernel can take its servers and workers along.
It is a script and not a `preexec_fn` because that one runs Python between fork and exec, which may
deadlock once the parent has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel for a SIGKILL at the parent's death; the setting survives exec."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked: nobody would tell us any more
        os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str]) -> None:
    split = argv.index("--")
    options, command = argv[:split], argv[split + 1 :]
    for name, value in zip(options[::2], options[1::2], strict=True):
        if name == "--parent":
            die_with_parent(int(value))
        elif name == "--hostname":
            socket.sethostname(value)
        else:
            raise SystemExit(f"guarded: unknown option {name}")
    # Python ignores SIGPIPE, and ignored signals are inherited: give the program the default.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
