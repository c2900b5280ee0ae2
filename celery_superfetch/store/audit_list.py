"""The audit list: each change that an operator made with a command or on the page.

The commands and the page write an entry before a change, and complete it afterwards; both print the
list. No job depends on it. If an entry cannot be written, the change is made all the same, and a
warning is logged. If the process dies during a change, its entry stays ``under way``: it has the
count of the last batch that was finished.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from redis.exceptions import RedisError

from ..errors import SuperfetchError
from ..model.log_text import one_line_each
from ..model.records import parsed_json, text_of, whole
from .database import Structure, none_if_wrong_type

logger = one_line_each(logging.getLogger(__name__))

#: Entries of the list. With a thousand of the usual length it takes 0.4 MB, and 5 MB if all texts
#: are as long as they may be (tests/integration/store/test_audit_list.py).
AUDIT_MAX = 1000
#: Characters of the texts of an entry.
AUTHOR_MAX_CHARS, SUBJECT_MAX_CHARS, OUTCOME_MAX_CHARS = 100, 300, 300

UNDER_WAY, COMPLETE, CHANGE_FAILED, INTERRUPTED = "under way", "complete", "failed", "interrupted"


@dataclass(frozen=True)
class AuditEntry:
    """One change."""

    id: str
    at: int  # its begin (server ms); 0: the server did not say
    by: str  # the name of the token, or user and host of a command
    action: str  # such as "dead retry": the command that does the same
    subject: str  # the filter, the ids, or the name of a queue or worker
    #: Jobs, or other things, that were counted before the change; None: it has no count.
    total: int | None = None
    done: int = 0  # of these
    failed: int = 0  # of these
    state: str = UNDER_WAY
    outcome: str = ""
    updated_at: int = 0  # latest write (server ms)

    @property
    def dealt_with(self) -> int:
        """Number of things that were dealt with, successfully or not."""
        return self.done + self.failed

    def dump(self) -> bytes:
        record = {name: value for name, value in vars(self).items() if name != "id"}
        return json.dumps(record, ensure_ascii=False).encode(errors="replace")

    @classmethod
    def load(cls, id: str, raw: bytes | str) -> AuditEntry:
        """Read an entry, which a person may have written by hand."""
        fields: dict[str, Any] = parsed_json(raw, {})
        total = fields.get("total")
        return cls(
            id,
            max(0, whole(fields.get("at"))),
            text_of(fields.get("by"))[:AUTHOR_MAX_CHARS],
            text_of(fields.get("action"))[:AUTHOR_MAX_CHARS],
            text_of(fields.get("subject"))[:SUBJECT_MAX_CHARS],
            None if total is None else max(0, whole(total)),
            max(0, whole(fields.get("done"))),
            max(0, whole(fields.get("failed"))),
            text_of(fields.get("state"))[:AUTHOR_MAX_CHARS],
            text_of(fields.get("outcome"))[:OUTCOME_MAX_CHARS],
            max(0, whole(fields.get("updated_at"))),
        )


class AuditRecord:
    """The entry of a change that is under way."""

    def __init__(self, audit: AuditList, entry: AuditEntry) -> None:
        self._audit, self.entry = audit, entry

    def progress(self, done: int, failed: int = 0) -> None:
        """Store how many were done so far, and how many could not be."""
        self.entry = self._audit.write(replace(self.entry, done=done, failed=failed))

    def end(self, outcome: str, done: int | None = None, failed: int = 0) -> None:
        """Set the outcome. It is stored when the change has ended (``AuditList.recording``)."""
        count = self.entry.done if done is None else done
        text = outcome[:OUTCOME_MAX_CHARS]
        self.entry = replace(self.entry, done=count, failed=failed, outcome=text)


class AuditList(Structure):
    """The audit list of a database (``superfetch:audit``)."""

    def begin(self, by: str, action: str, subject: str, total: int | None = None) -> AuditRecord:
        """Write the entry of a change that begins.

        Arguments:
            by: who makes it.
            subject: the filter, the ids, or the name of a queue or worker.
            total: how many jobs were counted.
        """
        entry = AuditEntry(
            f"{0:013}-{uuid4().hex[:8]}",
            0,
            by[:AUTHOR_MAX_CHARS],
            action,
            subject[:SUBJECT_MAX_CHARS],
            total,
        )
        try:
            now = self.database.server_time()
            entry = replace(entry, id=f"{now:013}-{entry.id[14:]}", at=now)
            self._trim()
        except RedisError as exc:
            self._say(entry, exc)
        else:
            entry = self.write(entry)
        return AuditRecord(self, entry)

    @contextmanager
    def recording(
        self, by: str, action: str, subject: str, total: int | None = None
    ) -> Iterator[AuditRecord]:
        """Keep the entry of the change that the block makes; its error is raised as it is."""
        record = self.begin(by, action, subject, total)
        try:
            yield record
        except KeyboardInterrupt:
            self.finish(record, INTERRUPTED, "interrupted with Ctrl-C")
            raise
        except BaseException as exc:
            # The text of another error may quote what is secret.
            is_known = isinstance(exc, (RedisError, SuperfetchError))
            self.finish(record, CHANGE_FAILED, str(exc) if is_known else type(exc).__name__)
            raise
        self.finish(record, COMPLETE, record.entry.outcome)

    def finish(self, record: AuditRecord, state: str, outcome: str) -> None:
        """Write the end of a change."""
        text = outcome[:OUTCOME_MAX_CHARS]
        record.entry = self.write(replace(record.entry, state=state, outcome=text))

    def write(self, entry: AuditEntry) -> AuditEntry:
        """Write an entry, and return it with the time; if that fails, log it."""
        try:
            entry = replace(entry, updated_at=self.database.server_time())
            self.client.hset(self.keys.audit, entry.id, entry.dump())
        except RedisError as exc:
            self._say(entry, exc)
        return entry

    def _trim(self) -> None:
        """Make room for an entry. Two processes at once may exceed the cap by one each."""
        if surplus := self.ids()[AUDIT_MAX - 1 :]:
            self.client.hdel(self.keys.audit, *surplus)

    def _say(self, entry: AuditEntry, exc: Exception) -> None:
        logger.warning(
            "Entry of the audit list was not written: the change itself is not affected "
            "(action=%s, by=%s, subject=%s, outcome=%s): %s. Check the server's memory, and that "
            "its ACL allows key %s.",
            entry.action,
            entry.by,
            entry.subject,
            entry.outcome or entry.state,
            exc,
            self.keys.audit,
        )

    def ids(self) -> list[bytes]:
        """Return the ids of all entries, the newest first."""
        [reply] = self._at_once([("HKEYS", self.keys.audit)], errors=True)
        # A key of another type, written by hand, has no entries.
        return sorted(none_if_wrong_type(reply) or [], reverse=True)

    def newest(self, first: int, count: int) -> list[AuditEntry]:
        """Return some entries, the newest first.

        Arguments:
            first: how many of the newest are skipped.
        """
        return self._load(self.ids()[first : first + count])

    def get(self, id: str) -> AuditEntry | None:
        """Return one entry; None if there is none, or it was dropped."""
        return next(iter(self._load([id.encode(errors="replace")])), None)

    def _load(self, ids: Sequence[bytes]) -> list[AuditEntry]:
        rows = self.client.hmget(self.keys.audit, ids) if ids else []
        pairs = zip(ids, rows, strict=True)
        return [
            AuditEntry.load(id.decode(errors="replace"), raw)
            for id, raw in pairs
            if raw is not None
        ]
