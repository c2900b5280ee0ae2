"""kombu's tests that ours cannot pass, because they look inside the stock channel.

Each says what it looks at, and names a test of ours that looks at the same behaviour from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UNACKED = "asserts the rows of stock's `unacked` hash; here a job in flight is in a private list"
BRPOP = "looks at the BRPOP connection in the channel; here BRPOP serves no queue with acks"


@dataclass(frozen=True)
class Row:
    """One test of kombu's, whatever its parameters (or only those that contain `param`)."""

    test: str
    reason: str
    #: Test of ours for the same behaviour: file in `tests/integration/transport`, and name.
    counterpart: str
    param: str = ""

    def matches(self, test: str) -> bool:
        name, _, params = test.rpartition("/")[2].partition("[")
        return name == self.test and self.param in params


ROWS = (
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


def rows_for(version: str) -> tuple[Row, ...]:
    """The rows for a version of kombu; before 5.7 it had none of these tests."""
    return ROWS if tuple(map(int, version.split(".")[:2])) >= (5, 7) else ()


def missing_counterparts(tests: Path) -> list[str]:
    """Counterparts that are named above and do not exist."""
    missing = []
    for row in ROWS:
        file, _, name = row.counterpart.partition("::")
        path = tests / "integration" / "transport" / file
        if not path.exists() or f"def {name}(" not in path.read_text():
            missing.append(row.counterpart)
    return missing
