"""The package's scripts, with lines removed from some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.scripts import Scripts

#: Pairs of a text in a script and the text that replaces it.
Changes = tuple[tuple[str, str], ...]


class ChangedScripts(Scripts):
    """The package's scripts, some of them changed.

    Arguments:
        changes: script -> what is changed in it.
    """

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
                raise ValueError(f"{name}.lua no longer contains {old!r}: adapt this mutant")
            text = text.replace(old, new)
        return text
