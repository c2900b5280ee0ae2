"""Chooses the serializer of the messages that this package sends by itself: failure notifications
and beat's reap task.

The process that sends one calls ``accepted_serializer``: a reaper, a worker or beat.
Only settings are read: if the process dies, nothing has changed.
"""

from __future__ import annotations

from celery import Celery
from kombu.serialization import registry


def accepted_serializer(app: Celery) -> str:
    """Return the app's ``task_serializer``, or the first serializer of ``accept_content`` if the
    app's workers do not accept that. An app that sends each of its tasks with a serializer of the
    task's own has no reason to set ``task_serializer``, and its workers refuse the default."""
    default = str(app.conf.task_serializer)
    names, types = registry.type_to_name, registry.name_to_type
    # A name is that of a serializer or of its content type. One that this process does not know is
    # left out: another process may have registered it.
    types_accepted = [types.get(name, name) for name in app.conf.accept_content or ()]
    accepted = [names[type] for type in types_accepted if type in names]
    return default if default in accepted or not accepted else accepted[0]
