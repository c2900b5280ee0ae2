"""Write and read the history of a run: one line of JSON for each event (send, start, end, harm).

The storm and the crash points use it, and their verdicts read nothing else. If a process is killed,
all lines that it has written are in the file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any


class History:
    """A file to which lines are appended. Several processes and threads may write to it: each line
    is one write at the end of the file, so lines do not mix, and outlive the process that wrote
    them.

    Arguments:
        path: the file; its directory is made.
        new: begin with an empty file; False to append to one that another process began.
    """

    def __init__(self, path: Path, *, new: bool = True) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | new * os.O_TRUNC)

    def write(self, event: str, **facts: Any) -> dict[str, Any]:
        """Append a line, with the present time unless ``facts`` has ``at``. Return it."""
        line = {"event": event, "at": round(time.time(), 4), **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        return line

    def close(self) -> str:
        """Close the file, and write a compressed copy next to it. Return its lines' SHA-256."""
        os.close(self._file)
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        packed = self.path.with_name(self.path.name + ".gz")
        with self.path.open("rb") as raw, gzip.GzipFile(packed, "wb", mtime=0) as out:
            shutil.copyfileobj(raw, out)
        return digest


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history, compressed (.gz) or not."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return [json.loads(line) for line in text.splitlines()]
