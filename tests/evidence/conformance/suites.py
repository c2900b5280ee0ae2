"""What is run: whose tests, which of them, and what is left out for what reason."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version


@dataclass(frozen=True)
class Suite:
    """Tests in the sdist of `package`. Its plugin is `<name>_suite.py`."""

    package: str
    files: tuple[str, ...]
    #: Words in the names of files and tests that are left out.
    without: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return version(self.package)


SUITES = {
    "kombu": Suite("kombu", ("t/integration/test_redis*.py",)),
    # test_connection_recovery.py speaks to kombu's Redis transport by its URL, past any app.
    "integration": Suite(
        "celery",
        tuple(f"t/integration/test_{name}.py" for name in ("canvas", "group_chains", "tasks")),
        (
            # reads a worker's log 10 ms after the result: on a busy machine that is too early
            "trace_log_arguments",
            # takes back, once it has sent its task, what the worker's thread has noted by then
            "replaced_task_nesting_level_0",
            # revokes jobs that run, and goes on before they have ended: stock fails it, and on ours
            # those jobs hold the one solo worker, behind which the next test times out
            "revoked_by_headers_complex_canvas",
        ),
    ),
    "smoke": Suite(
        "celery",
        ("t/smoke/tests/**/test_*.py",),
        (
            # of other brokers and backends; all that these tests do needs one
            *(
                "rabbitmq",
                "quorum_queues",
                "broker_failover",
                "memcached",
                "callback_publish_retry",
            ),
            # of control groups, and of a third CPU
            *("concurrency_auto", "heartbeat_during_shutdown"),
            # of a /tmp that ends with its container
            "unreachable_result_backend",
            # revokes a job with an ETA that a worker has received: here that is its last second
            "received_ids_are_stamped_locally",
            # of the result backend alone; collects garbage for minutes
            "redis_backend_reentrant",
        ),
    ),
}
