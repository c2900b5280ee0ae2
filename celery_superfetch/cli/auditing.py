"""Entries of the audit list for the commands: their author, and the subject of each.

Each command that changes something for an operator makes its change within ``recorded``
(``store/audit_list.py`` says what happens if the process dies).
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..inspector import AuditRecord
    from .session import Session

#: The subject of a change of all jobs.
ALL = "all"

#: Ids that the subject of an entry names.
IDS_NAMED = 5


def operator() -> str:
    """Return who runs this process: the user and the host."""
    try:
        user = getpass.getuser()
    except Exception:  # a container's user without a name: KeyError, OSError or ImportError
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def recorded(
    session: Session, action: str, subject: str, total: int | None = None
) -> AbstractContextManager[AuditRecord]:
    """Return a block whose change is an entry of the audit list."""
    return session.inspector.audit.recording(operator(), action, subject, total)


def subject_of_ids(ids: Sequence[str]) -> str:
    """Return the subject of a change of some jobs by their ids."""
    further = f" and {len(ids) - IDS_NAMED} more" if len(ids) > IDS_NAMED else ""
    return f"id {', '.join(ids[:IDS_NAMED])}{further}"


def subject_of_filter(conditions: Mapping[str, Any]) -> str:
    """Return the subject of a change of all jobs that meet the conditions."""
    texts = [
        f"{name.replace('_', ' ')} {value:g} s"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in conditions.items()
        if value is not None
    ]
    return ", ".join(texts) or ALL


def jobs_of(count: int, subject: str) -> str:
    """Return the dead jobs of a filter as a question names them."""
    from ..model.humanize import number

    if subject == ALL:
        return f"all {number(count, 'dead job')}" if count > 1 else "the only dead job"
    return f"{number(count, 'dead job')} of {subject}"
