"""Celery's request as its mixins here know it: it comes without types."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class CeleryRequest:
        """What they use of ``celery.worker.request.Request``."""

        acknowledged: bool
        app: Any
        eta: datetime | None
        id: str
        message: Any
        name: str
        request_dict: dict[str, Any]
        task: Any
        _already_cancelled: bool
        _context: Any

        def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None: ...
        def acknowledge(self) -> Any: ...
        def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None: ...
        def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any: ...
        def on_timeout(self, soft: bool, timeout: float) -> Any: ...
        def reject(self, requeue: bool = False) -> Any: ...
        def _announce_cancelled(self, **told: Any) -> None: ...
        def _retry_worker_lost(self, exc: BaseException, exc_info: Any) -> bool: ...

else:
    CeleryRequest = object  # the class that is mixed with comes after it, and has them all
