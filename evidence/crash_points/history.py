"""What happened, as data: one JSON line for each send, start, end, harm and rest."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any


class History:
    """Appends lines to a file. Several lanes write at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self._lock = threading.Lock()

    def write(self, event: str, **more: Any) -> dict[str, Any]:
        line = {"event": event, "at": round(time.time(), 4), **more}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        return line

    def close(self) -> str:
        """Compress the file; the SHA-256 of what is in it."""
        self._file.close()
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        packed = self.path.with_name(self.path.name + ".gz")
        with self.path.open("rb") as raw, gzip.GzipFile(packed, "wb", mtime=0) as out:
            shutil.copyfileobj(raw, out)
        return digest


def read(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return [json.loads(line) for line in text.splitlines()]
