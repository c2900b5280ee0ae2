"""What an owner says of itself survives the way through Redis; what is broken weakens it."""

from __future__ import annotations

import pytest

from celery_superfetch.model.config import Config
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage

IMAGE = ProcessImage(
    host="web-1",
    pid=77,
    start_time="123456",
    boot_id="b-o-o-t",
    pid_namespace="4026531836",
    image="c0ffee",
)
READER = Config(heartbeat_interval=3, owner_ttl=30)
FULL = OwnerRecord(
    owner="web-1|77|nonce",
    process=IMAGE,
    heartbeat_interval=7.5,
    owner_ttl=90.0,
    app="shöp",
    version="0.2",
    state="stopping",
    run_id="r" * 40,
    connections=(3, 99),
    pool=((78, "123460"), (79, "123461")),
    pool_name="prefork",
    slots=2,
    memory=64 * 2**20,
    lists={"mail": 0, "a:b\x06\x163": 60000},
)


def stored(fields: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in fields.items()}


def test_facts_survive_the_way_through_redis():
    """An owner's own settings win over the reader's."""
    assert OwnerRecord.load(FULL.owner, stored(FULL.dump()), READER) == FULL


def test_what_the_server_wrote_is_read_and_not_written():
    written = {"registered_at": "1700000000000", "state_before_reap": "running", "ran_at_reap": "7"}
    assert not written.keys() & FULL.dump().keys()
    record = OwnerRecord.load(FULL.owner, stored({**FULL.dump(), **written}), READER)
    assert record.registered_at == 1700000000000
    assert (record.state_before_reap, record.ran_at_reap) == ("running", 7)


def test_a_missing_row_gives_the_weakest_facts():
    record = OwnerRecord.load("web-1|77|nonce", {}, READER)
    assert (record.heartbeat_interval, record.owner_ttl) == (3, 30), "the reader's own"
    assert (record.process.host, record.process.pid) == ("web-1", 77), "from the name"
    assert (record.connections, record.pool, record.lists) == ((), (), {})
    assert not IMAGE.is_local_to(record.process), "nobody may look at that pid"


@pytest.mark.parametrize("owner", ["", "|", "a", "a|b|c", "a|1", "\udcff|1|x"])
def test_an_owner_with_an_odd_name_can_be_read(owner):
    record = OwnerRecord.load(owner, {}, READER)
    assert record.owner == owner
    assert not IMAGE.is_local_to(record.process)


BROKEN = {
    "numbers that are words": ("heartbeat_interval", "often", READER.heartbeat_interval),
    "a ttl of nothing": ("owner_ttl", "0", READER.owner_ttl),
    "a negative ttl": ("owner_ttl", "-60", READER.owner_ttl),
    "a ttl that is not a number": ("owner_ttl", "nan", READER.owner_ttl),
    "connections that are no JSON": ("connections", "[1,", ()),
    "connections of another type": ("connections", '{"a": 1}', ()),
    "a pool that is no list": ("pool", "7", ()),
    "a pool of bare pids": ("pool", "[1, 2]", ()),
    "a pool of short rows": ("pool", "[[1]]", ()),
    "slots of less than none": ("slots", "-2", 0),
    "a memory that is no number": ("memory", '"much"', 0),
    "a connection without end": ("connections", "[Infinity]", (0,)),
    "connections nested without end": ("connections", "[" * 100_000, ()),
    "lists that are a list": ("lists", '["mail"]', {}),
    "lists that are null": ("lists", "null", {}),
    "a number of runs that is none": ("ran_at_reap", "many", 0),
}


@pytest.mark.parametrize(("name", "value", "read"), BROKEN.values(), ids=BROKEN)
def test_a_broken_fact_is_read_as_a_weak_one(name, value, read):
    """A row of another version, or of somebody's hand, must never stop a pass."""
    row = stored({**FULL.dump(), name: value})
    assert getattr(OwnerRecord.load(FULL.owner, row, READER), name) == read


def test_bytes_that_are_no_text_do_not_stop_a_pass():
    row = {**stored(FULL.dump()), b"app": b"\xff\xfe", b"\xff": b"\xff", b"pid": b"\xff"}
    record = OwnerRecord.load(FULL.owner, row, READER)
    assert record.process.pid == 0
    assert record.lists == FULL.lists


def test_fields_of_a_later_version_are_skipped():
    row = stored({**FULL.dump(), "schema": "99", "colour": "blue"})
    assert OwnerRecord.load(FULL.owner, row, READER) == FULL.with_(schema="99"), "which is told"
