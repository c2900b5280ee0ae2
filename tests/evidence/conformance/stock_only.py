"""Tests of kombu's and Celery's that ours cannot pass: they look inside the stock channel, or for a
text of stock's that is not true here.

Each says what it looks at, and names a test of ours that looks at the same behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: The outcome of a test whose failure a row, or its own authors, announce. Theirs may pass as well.
ANNOUNCED = "announced to fail"

UNACKED = "asserts the rows of stock's `unacked` hash; here a job in flight is in a private list"
BRPOP = "looks at the BRPOP connection in the channel; here BRPOP serves no queue with acks"


@dataclass(frozen=True)
class Row:
    """One of their tests, whatever its parameters (or only those that contain `param`)."""

    test: str
    reason: str
    #: Test of ours for the same behaviour: the name of its file, and its own.
    counterpart: str
    param: str = ""

    def matches(self, test: str) -> bool:
        name, _, params = test.rpartition("/")[2].partition("[")
        return name == self.test and self.param in params


KOMBU = (
    Row(
        "test_redis.py::test_RedisRestoreVisible::test_restore_visible_requeues_expired_unacked",
        UNACKED,
        "test_transport_end.py::test_a_recovered_message_is_marked_too",
    ),
    Row(
        "test_redis.py::test_RedisRestoreBindingLookupFailure::"
        "test_failed_requeue_keeps_message_unacked",
        UNACKED,
        "test_plain_kombu_hub.py::test_a_requeue_that_fails_is_kept_and_done_later",
    ),
    Row(
        "test_redis.py::test_RedisRestoreBindingLookupFailure::"
        "test_failed_restore_visible_keeps_message_unacked",
        UNACKED,
        "test_plain_kombu_hub.py::test_a_requeue_that_fails_is_kept_and_done_later",
    ),
    Row(
        "test_redis.py::test_RedisRestoreAtShutdown::"
        "test_unacked_message_requeued_on_connection_close",
        UNACKED,
        "test_transport_end.py::test_a_closed_channel_gives_everything_back_in_the_old_order",
    ),
    Row(
        "test_redis.py::test_event_loop_consumes_after_connection_reconnect",
        BRPOP,
        "test_plain_kombu_hub.py::test_the_event_loop_consumes_on_after_its_connections_were_cut",
        param="BRPOP",
    ),
    Row(
        "test_redis_brpop_qos.py::test_hub_pauses_pending_brpop_until_ack",
        BRPOP,
        "test_plain_kombu_hub.py::test_what_arrives_after_the_credit_is_used_up_waits_for_the_ack",
    ),
    Row(
        "test_redis_brpop_qos.py::test_drain_events_resumes_pending_brpop_without_resending",
        BRPOP,
        "test_plain_kombu_hub.py::test_what_arrives_after_the_credit_is_used_up_waits_for_the_ack",
    ),
    Row(
        "test_redis_brpop_qos.py::test_pending_message_survives_cancel_or_close",
        BRPOP,
        "test_plain_kombu_hub.py::test_what_arrives_late_survives_cancel_and_close",
    ),
    Row(
        "test_redis_brpop_qos.py::test_paused_channel_does_not_block_other_channels",
        BRPOP,
        "test_plain_kombu_hub.py::test_a_channel_without_credit_does_not_stop_another",
    ),
)


RESETS = (
    "test_worker.py::test_worker_shutdown::test_worker_soft_shutdown_timeout::"
    "test_reset_visibility_timeout"
)
SMOKE = (
    *(
        Row(
            f"test_tasks.py::test_task_termination::{name}",
            "asks for WorkerLostError after the first death; here it is PoisonPill after the third",
            "test_workers.py::test_a_job_that_kills_its_pool_child_runs_three_times_and_no_more",
            param=f"Method.{way}",
        )
        for name in ("test_child_process_respawn", "test_terminated_task_logs_correct_error")
        for way in ("SIGKILL", "SYSTEM_EXIT")
    ),
    *(
        Row(
            f"{RESETS}::{name}",
            "waits for stock's line in the log, `Restoring 1 unacknowledged message(s)`",
            "test_shutdown_cold.py::"
            "test_a_soft_shutdown_gives_back_at_once_and_cuts_only_what_takes_too_long",
        )
        for name in (
            "test_soft_shutdown_reset_visibility_timeout",
            "test_soft_shutdown_reset_visibility_timeout_group_one_finish",
            "test_soft_shutdown_reset_visibility_timeout_group_none_finish",
            "test_REMAP_SIGTERM::test_soft_shutdown_reset_visibility_timeout",
            "test_REMAP_SIGTERM::test_soft_shutdown_reset_visibility_timeout_group_one_finish",
            "test_worker_enable_soft_shutdown_on_idle::test_soft_shutdown_eta",
        )
    ),
)

ROWS: dict[str, tuple[Row, ...]] = {"kombu": KOMBU, "integration": (), "smoke": SMOKE}


def rows_for(suite: str, version: str) -> tuple[Row, ...]:
    """Those for a version of kombu or Celery; before 5.7 they had none of these tests."""
    return ROWS[suite] if tuple(map(int, version.split(".")[:2])) >= (5, 7) else ()


def missing_counterparts(suite: str, tests: Path) -> list[str]:
    """Counterparts that are named above and do not exist."""
    missing = []
    for row in ROWS[suite]:
        file, _, name = row.counterpart.partition("::")
        if not any(f"def {name}(" in path.read_text() for path in tests.rglob(file)):
            missing.append(row.counterpart)
    return missing
