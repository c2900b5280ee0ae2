"""``install(app)``: everything a Celery app needs, without touching any other."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.utils.imports import symbol_by_name

from ..errors import ConfigError
from ..model.config import check, own_options
from ..signals import job_killed, job_recovered, job_recovering
from ..transport.transport import KNOWN_OPTIONS
from .broker import AMQP, Connection, config_of
from .events import reporter
from .poison_pill import guard_of
from .reaping import REAP_ENTRY, add_reap_task, reap_entry

#: Celery loads bootsteps by name, so that only workers load what they need.
STEPS = f"{__name__.partition('.')[0]}.worker.steps"

#: Settings that we give another default, each with its old name. Without them Celery acks a job
#: before it runs, and drops it when its pool process is lost; and after a lost connection it
#: leaves slots free for jobs that went on, which we count already.
DEFAULTS = {
    "task_acks_late": ("CELERY_ACKS_LATE", True),
    "task_reject_on_worker_lost": ("CELERY_REJECT_ON_WORKER_LOST", True),
    "worker_enable_prefetch_count_reduction": ("CELERYD_ENABLE_PREFETCH_COUNT_REDUCTION", False),
}


def install(app: Celery, **options: Any) -> Celery:
    """Make ``app`` fetch reliably.

    Works before and after the app is configured, and more than once (later options win).

    Arguments:
        options: see ``Config``, or kombu's; merged into ``broker_transport_options``.

    Returns:
        ``app``.

    Raises:
        ConfigError: an option is unknown or impossible; the app was left as it was.
    """
    installation = getattr(app, "_superfetch", None)
    all_options = {**(installation.options if installation else {}), **options}
    check(own_options(all_options, KNOWN_OPTIONS))
    if installation is None:
        installation = app._superfetch = _Installation(app)
        installation.add()
    installation.options.update(options)
    if app.configured:
        installation.configure()
    return app


class _Installation:
    """What ``install`` did to one app."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.options: dict[str, Any] = {}

    def add(self) -> None:
        app = self.app
        own = symbol_by_name(app.amqp_cls)
        # By name where that is possible: an app is pickled with it.
        app.amqp_cls = (
            f"{AMQP.__module__}:{AMQP.__name__}"
            if issubclass(AMQP, own)
            else type(own.__name__, (own,), {"Connection": Connection})
        )
        if "amqp" in app.__dict__:
            app.amqp.Connection = Connection
        app.steps["worker"].add(f"{STEPS}:Maintenance")
        app.steps["consumer"].add(f"{STEPS}:Guarded")
        add_reap_task(app)
        job_recovering.connect(guard_of(app), sender=app, weak=False)
        job_recovered.connect(reporter(app, "recovery"), sender=app, weak=False)
        job_killed.connect(reporter(app, "job"), sender=app, weak=False)
        # Configuration may come later, and again; what a module sets after it was read is
        # seen when the app is finalized.
        app.on_after_configure.connect(self.configure, weak=False)
        app.on_after_finalize.connect(self.configure, weak=False)

    def configure(self, **_: Any) -> None:
        """Merge options, defaults and the beat entry into the app's configuration."""
        conf = self.app.conf
        self._set(
            "broker_transport_options",
            {
                **(conf.broker_transport_options or {}),
                **self.options,
                "app_name": self.app.main or "",
            },
        )
        # The last map holds Celery's own defaults for this app: whatever the user set, in
        # whichever way and however late, is found before it.
        defaults = conf.maps[-1]
        for name, (old, value) in DEFAULTS.items():
            defaults[old if old in defaults else name] = value
        try:
            interval = config_of(self.app).reap_interval
        except ConfigError:
            return  # a receiver's error would be swallowed; the worker's start refuses it
        schedule = dict(conf.beat_schedule or {})
        schedule.setdefault(REAP_ENTRY, reap_entry(interval))
        self._set("beat_schedule", schedule)

    def _set(self, name: str, value: Any) -> None:
        """Set a setting where it is found first: with a namespace, Celery before 5.7 reads the
        prefixed name before the plain one, whichever map has it."""
        conf = self.app.conf
        for key in (conf._to_keys(name)[0], name):
            conf.maps[0][key] = value
