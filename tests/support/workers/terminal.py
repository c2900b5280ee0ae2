"""A command at a terminal of its own: what it shows there, and keys that are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence

import pyte

from support.process import guarded
from support.waiting import eventually

#: Makes the terminal on stdin the one that Ctrl-C comes from, as a login does.
LOGIN = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """Use as a context manager."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], columns: int = 80, lines: int = 24
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._ours, self._theirs = pty.openpty()
        self._size(columns, lines)
        self._popen = subprocess.Popen(
            guarded([sys.executable, "-c", LOGIN, *argv]),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(10)
        os.close(self._theirs)
        self._reader.join(10)
        os.close(self._ours)

    def resize(self, columns: int, lines: int) -> None:
        with self._lock:
            self._screen.resize(lines, columns)
        self._size(columns, lines)

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                said = os.read(self._ours, 65536)
            except OSError:  # nobody has it open any more
                return
            with self._lock:
                self._stream.feed(said)

    def lines(self) -> list[str]:
        """What is to be seen."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    def cells(self) -> list[list[pyte.screens.Char]]:
        """The same with its colours, cell by cell."""
        with self._lock:
            screen = self._screen
            columns = range(screen.columns)
            return [[screen.buffer[row][at] for at in columns] for row in range(screen.lines)]

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def shows(self, *texts: str) -> list[str]:
        """Wait until it shows all of these, however its lines are broken; its lines then."""

        def holds(lines: list[str]) -> bool:
            shown = " ".join(" ".join(lines).split())
            return all(text in shown for text in texts)

        return self.until(holds, str(texts))

    def until(self, holds: Callable[[list[str]], bool], what: str = "") -> list[str]:
        """Wait until it shows what is asked for; its lines then."""

        def seen() -> list[str]:
            lines = self.lines()
            assert holds(lines), "\n".join([what, *lines])
            return lines

        return eventually(seen, 60)

    def wait_exit(self) -> int:
        return self._popen.wait(60)
