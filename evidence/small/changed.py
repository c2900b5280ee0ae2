"""The package's scripts, some of them with a safety taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.scripts import Scripts

#: What is taken out of a script's text, and what stands there instead.
Changes = tuple[tuple[str, str], ...]


class Changed(Scripts):
    """Our scripts, some of them with a line of theirs taken out."""

    def __init__(self, client: redis.Redis, never: str, changes: Mapping[str, Changes]) -> None:
        super().__init__(client, never)
        self._changes, self._loaded = changes, set[str]()

    def command(self, call: Call) -> list[Any]:
        if not call.is_plain and call.name not in self._loaded:
            self._loaded.add(call.name)
            self.client.script_load(self._source(call.name))
        return super().command(call)

    def _source(self, name: str) -> str:
        text = super()._source(name)
        for old, new in self._changes.get(name, ()):
            if old not in text:
                raise ValueError(f"{name}.lua has no {old!r} any more: mend this mutant")
            text = text.replace(old, new)
        return text
