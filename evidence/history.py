"""What happened, as data: one JSON line for each send, start, end and harm."""

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
    """Appends lines to a file. Each is one write at the end of the file, so that processes and
    threads can share it, and what was written outlives whoever is killed."""

    def __init__(self, path: Path, *, new: bool = True) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | new * os.O_TRUNC)

    def write(self, event: str, **facts: Any) -> dict[str, Any]:
        line = {"event": event, "at": round(time.time(), 4), **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        return line

    def close(self) -> str:
        """Compress the file; the SHA-256 of what is in it."""
        os.close(self._file)
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        packed = self.path.with_name(self.path.name + ".gz")
        with self.path.open("rb") as raw, gzip.GzipFile(packed, "wb", mtime=0) as out:
            shutil.copyfileobj(raw, out)
        return digest


def read(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return [json.loads(line) for line in text.splitlines()]
