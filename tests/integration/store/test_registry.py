"""Owners in the registry: how they come, are heard, are marked, and go."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_superfetch.model.owner_rank import OwnerRank
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.store.database import Database
from celery_superfetch.store.owner_registry import OwnerRegistry
from celery_superfetch.store.redis.clients import cut, run_id
from celery_superfetch.store.redis.connections import with_client_defaults
from support.waiting import eventually
from support.workers.bench import elsewhere, ended_process

HERE = ProcessImage.current().host


def test_a_registered_owner_is_there_with_all_its_facts(bench):
    record = bench.owner(lists={"mail": 0, "slow": 60000}, pool=((7, "8"),), connections=(5,))
    score = bench.score(record)
    assert abs(bench.database.server_time() - score) < 5000
    read = bench.record(record)
    assert read == record.with_(registered_at=read.registered_at)
    assert read.registered_at == score


def test_registering_again_is_a_heartbeat_and_keeps_the_first_date(bench, owner):
    first = bench.record(owner).registered_at
    bench.age(owner, 5000)
    bench.registry.register(owner.with_(lists={"mail": 0, "more": 0}))
    again = bench.record(owner)
    assert again.registered_at == first
    assert set(again.lists) == {"mail", "more"}
    assert bench.score(owner) >= first


def test_a_reaped_owner_cannot_register(bench, owner):
    assert bench.mark(owner)
    assert bench.registry.register(owner).status == "reaped"
    bench.client.delete(bench.keys.owner_record(owner.owner))
    assert bench.registry.register(owner).status == "reaped", "its lists are drained under its name"
    assert bench.registry.owners() == {}


def test_a_heartbeat_moves_the_score_and_writes_what_changed(bench, owner):
    old = bench.age(owner, 5000)
    beat = bench.registry.heartbeat(owner, 0, {"state": "stopping"})
    assert beat.status == "ok"
    assert bench.score(owner) == beat.now > old
    read = bench.record(owner)
    assert read.state == "stopping"
    assert read.app == owner.app, "the rest is as it was"


def test_a_heartbeat_without_a_row_says_missing(bench, owner):
    bench.client.delete(bench.keys.owners)
    assert bench.registry.heartbeat(owner, 0, {}).status == "missing"
    assert bench.registry.owners() == {}, "it writes nothing: owner alone could not be judged"
    bench.registry.register(owner)
    bench.client.delete(bench.keys.owner_record(owner.owner))
    assert bench.registry.heartbeat(owner, 0, {"state": "stopping"}).status == "missing"
    assert not bench.client.exists(bench.keys.owner_record(owner.owner))
    bench.registry.register(owner)
    bench.client.delete(bench.keys.host(owner.process.host))
    assert bench.registry.heartbeat(owner, 0, {}).status == "missing", "peers here look there"
    bench.registry.register(owner)
    assert bench.registry.heartbeat(owner, 0, {}).status == "ok"
    bench.client.delete(bench.keys.owners, bench.keys.owner_record(owner.owner))
    assert bench.registry.heartbeat(owner, 0, {}).status == "unknown"


def test_the_heartbeat_of_a_reaped_owner_says_so_and_does_not_revive_it(bench, owner):
    bench.mark(owner)
    assert bench.registry.heartbeat(owner, 0, {}).status == "reaped"
    assert bench.registry.owners() == {}


def test_a_heartbeat_returns_who_was_quiet_since_the_last_one(bench):
    mine, quiet, heard = bench.owner(), bench.owner(elsewhere("a")), bench.owner(elsewhere("b"))
    since = bench.registry.heartbeat(mine, 0, {}).now
    score = bench.age(quiet, 10)
    eventually(lambda: bench.registry.heartbeat(heard, 0, {}).now > since, 5)
    beat = bench.registry.heartbeat(mine, since, {})
    assert beat.quiet == {quiet.owner: score}
    assert bench.registry.heartbeat(mine, 0, {}).quiet == {}, "with nothing to compare with"


def test_a_heartbeat_returns_what_is_on_probation_and_when_parked_jobs_are_due(bench, owner):
    assert bench.registry.heartbeat(owner, 0, {})[4:6] == (frozenset(), None)
    bench.client.sadd(bench.keys.on_probation, "mail", "post")
    bench.client.zadd(bench.keys.parked, {"mail": 2_000, "post": 1_000})
    assert bench.registry.heartbeat(owner, 0, {})[4:6] == ({"mail", "post"}, 1_000.0)


def test_a_heartbeat_names_some_of_thousands_of_lists_on_probation_and_each_in_time(bench):
    served, others = ([f"{kind}-{n}" for n in range(300)] for kind in ("served", "other"))
    owner = bench.owner(lists=served)
    bench.client.sadd(bench.keys.on_probation, *served, *others)
    beats = [bench.registry.heartbeat(owner, 0, {}).probation]
    assert len(beats[0]) == 100

    def named() -> set[str]:
        beats.append(bench.registry.heartbeat(owner, 0, {}).probation)
        return {name for names in beats for name in names}

    eventually(lambda: named() == set(served), 30)
    assert max(map(len, beats)) == 100, "and none that it does not have"
    bench.client.srem(bench.keys.on_probation, *others, *served[7:])
    assert bench.registry.heartbeat(owner, 0, {}).probation == set(served[:7])


def test_scores_from_the_future_are_quiet_ones(bench):
    """They were written before the server's clock was set back."""
    mine, ahead = bench.owner(), bench.owner(elsewhere())
    since = bench.registry.heartbeat(mine, 0, {}).now
    score = bench.age(ahead, -3_600_000)
    assert bench.registry.heartbeat(mine, since, {}).quiet[ahead.owner] == score
    assert bench.registry.heartbeat(mine, 0, {}).quiet == {}, "with nothing to compare with"


def test_a_heartbeat_returns_the_owners_of_its_own_host(bench):
    mine, neighbour = bench.owner(), bench.owner(ended_process())
    stranger = bench.owner(elsewhere())
    beat = bench.registry.heartbeat(mine, 0, {})
    assert set(beat.host_owners) == {mine.owner, neighbour.owner}
    assert bench.registry.heartbeat(stranger, 0, {}).host_owners == (stranger.owner,)


# -- places


def places(bench: Any, owners: list[Any]) -> list[OwnerRank]:
    return [bench.registry.heartbeat(owner, 0, {}, waits=True).rank for owner in owners]


def test_owners_of_the_same_lists_have_ranks_in_the_order_of_their_names(bench):
    owners = [bench.owner(elsewhere(f"h{n}"), group="one") for n in range(3)]
    others = [bench.owner(elsewhere(f"i{n}"), group="two") for n in range(2)]
    places(bench, owners + others)
    assert places(bench, owners) == [OwnerRank(0, 3, 3), OwnerRank(1, 3, 3), OwnerRank(2, 3, 3)]
    assert places(bench, others) == [OwnerRank(0, 2, 2), OwnerRank(1, 2, 2)]
    assert bench.registry.heartbeat(owners[1], 0, {}).rank == OwnerRank(1, 3, 2), "it waits no more"


def test_an_owner_without_a_group_has_no_rank(bench, owner):
    assert bench.registry.heartbeat(owner, 0, {}).rank == OwnerRank()
    assert not bench.client.exists(bench.keys.ranks)


def test_who_serves_other_lists_leaves_the_ranks_of_the_former_ones(bench):
    one, two = (bench.owner(elsewhere(name), group="one") for name in "ab")
    places(bench, [one, two])
    moved = one.with_(group="two")
    changed = {"group": "two"}
    assert bench.registry.heartbeat(moved, 0, changed, waits=True).rank == OwnerRank(0, 1, 1)
    assert places(bench, [two]) == [OwnerRank(0, 1, 1)]


@pytest.mark.parametrize("way", ["mark", "leave"])
def test_who_goes_leaves_the_ranks(bench, way):
    one, two = (bench.owner(elsewhere(name), group="one") for name in "ab")
    places(bench, [one, two])
    if way == "mark":
        assert bench.mark(one)
    else:
        assert bench.registry.leave(one, 0) == 0
    assert places(bench, [two]) == [OwnerRank(0, 1, 1)]
    assert bench.registry.leave(two, 0) == 0
    assert not bench.client.exists(bench.keys.ranks)


def test_the_rows_of_an_owner_whose_keys_were_evicted_are_removed_by_the_next_one(bench):
    one, two = (bench.owner(elsewhere(name), group="one") for name in "ab")
    places(bench, [one, two])
    bench.client.delete(bench.keys.owner_record(one.owner))
    bench.client.zrem(bench.keys.owners, one.owner)
    eventually(lambda: places(bench, [two]) == [OwnerRank(0, 1, 1)], 5)
    assert bench.client.zcard(bench.keys.ranks) == 2


def test_a_key_of_another_type_in_the_place_of_the_ranks_tells_no_rank(bench):
    owner = bench.owner(group="one")
    bench.client.delete(bench.keys.ranks)
    bench.client.set(bench.keys.ranks, "text")
    heard = bench.registry.heartbeat(owner, 0, {"state": "stopping"}, waits=True)
    assert (heard.status, heard.rank) == ("ok", OwnerRank())
    assert bench.record(owner).state == "stopping"
    assert bench.registry.leave(owner, 0) == 0


@pytest.mark.parametrize("forbidden", ["zlexcount", "zrevrangebylex"])
def test_a_user_who_may_not_ask_for_ranks_is_heard_all_the_same(bench, forbidden):
    owner = bench.owner(group="one")
    user = f"no-{forbidden}"
    bench.client.acl_setuser(
        user, enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{forbidden}"]
    )
    params = bench.client.connection_pool.connection_kwargs
    where = {name: params[name] for name in ("host", "port", "db") if name in params}
    try:
        # A client of its own: the server closes the connections of a user that is deleted.
        with redis.Redis(**where, username=user, password="x") as alone:
            heard = OwnerRegistry(Database(alone, bench.config)).heartbeat(
                owner, 0, {"state": "stopping"}, waits=True
            )
    finally:
        bench.client.acl_deluser(user)
    assert (heard.status, heard.rank) == ("ok", OwnerRank())
    assert bench.record(owner).state == "stopping"


def test_a_mark_needs_the_score_the_verdict_was_built_on(bench, owner):
    seen = bench.age(owner, 5000)
    bench.registry.heartbeat(owner, 0, {})
    assert not bench.registry.mark(owner, seen, 60, "gone")
    assert owner.owner in bench.registry.owners()
    assert bench.record(owner).state == "running"
    assert bench.mark(owner), "the control"


@pytest.mark.parametrize("kind", ["reaped", "host"])
def test_a_mark_that_meets_a_key_of_another_type_changes_nothing(bench, owner, kind):
    """Else the owner would be in neither registry."""
    key = bench.keys.reaped if kind == "reaped" else bench.keys.host(HERE)
    bench.client.delete(key)
    bench.client.set(key, "a text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        bench.mark(owner)
    assert owner.owner in bench.registry.owners()
    bench.client.delete(key)
    assert bench.mark(owner)


def test_a_mark_is_set_once(bench, owner):
    score = bench.score(owner)
    first, *others = [bench.registry.mark(owner, score, 60, "gone") for _ in range(3)]
    assert first == owner.with_(state="reaped", state_before_reap="running")
    assert others == [None, None]
    assert bench.stat("owners_reaped") == 1


@pytest.mark.parametrize("state", ["running", "stopping"])
def test_a_mark_leaves_a_tombstone_that_knows_the_state_before(bench, state):
    record = bench.owner(state=state)
    ran, _ = bench.give(record, "mail", [b"ran", b"waited"])
    bench.run_one(ran)
    marked = bench.mark(record)
    read = bench.record(record)
    assert read == marked
    assert (read.state, read.state_before_reap, read.ran_at_reap) == ("reaped", state, 1)
    assert read.lists == record.lists
    until = bench.registry.tombstones()[record.owner] - bench.database.server_time()
    assert 50_000 < until <= 60_000
    kept = bench.keys.owner_record(record.owner)
    assert bench.client.ttl(kept) == -1, "while it is listed"
    bench.registry.drop_tombstone(record.owner)
    assert 0 < bench.client.ttl(kept) <= 86400
    assert not bench.client.smembers(bench.keys.host(HERE))


def test_leaving_takes_every_key_along(bench):
    record = bench.owner(lists=["mail", "slow"])
    bench.client.hset(bench.keys.private(record.owner), "w7:mail", "")  # a note without its claim
    assert bench.registry.leave(record, 0) == 0
    assert bench.key_names() == {bench.keys.served}
    assert sorted(bench.registry.served()) == ["mail", "slow"]


def test_leaving_is_refused_while_jobs_are_left(bench):
    record = bench.owner(lists=["mail", "slow"])
    before = bench.key_names()
    one, two = bench.give(record, "slow", [b"1", b"2"])
    bench.run_one(one)
    bench.land(record, "mail", b"3")
    assert bench.registry.leave(record, 0) == 3
    kept = bench.keys.private(record.owner), bench.keys.landing(record.owner, "mail")
    assert bench.key_names() == before | {*kept, bench.keys.served}
    assert bench.held(record) == [two, one]
    assert record.owner in bench.registry.owners()


def test_leaving_with_a_claim_on_its_way_leaves_a_tombstone(bench, owner):
    assert bench.registry.leave(owner, 20) == 0
    assert bench.registry.owners() == {}
    [(name, until)] = bench.registry.tombstones().items()
    assert name == owner.owner
    assert 0 < until - bench.database.server_time() <= 20_000
    assert bench.record(owner).state == "reaped"
    assert bench.client.ttl(bench.keys.owner_record(owner.owner)) == -1
    assert bench.registry.leave(owner, 20) == 0, "it heard no answer: nobody took it for dead"
    bench.registry.drop_tombstone(owner.owner)
    assert bench.client.ttl(bench.keys.owner_record(owner.owner)) > 0


def test_leaving_after_it_was_reaped_changes_nothing(bench, owner):
    bench.mark(owner)
    assert bench.registry.leave(owner, 0) == -1, "and says so"
    assert set(bench.registry.tombstones()) == {owner.owner}


UNKNOWN = "web-9|4|0123456789ab"


def test_an_unknown_owner_is_adopted_with_its_list_and_no_job_moves(bench):
    bench.give(UNKNOWN, "a:b", [b"1"])
    assert bench.registry.register_unknown_owner(UNKNOWN, {"a:b"})
    assert set(bench.registry.owners()) == {UNKNOWN}
    record = bench.record(UNKNOWN)
    assert (record.process.host, record.process.pid) == ("web-9", 4)
    assert record.lists == {"a:b": 0}
    assert (record.heartbeat_interval, record.owner_ttl) == (5, 60)
    assert bench.private(UNKNOWN, "a:b") == [b"1"]
    assert not bench.registry.register_unknown_owner(UNKNOWN, {"a:b"})


def test_a_list_that_its_owner_did_not_register_is_listed(bench):
    record = bench.owner(lists={"mail": 60000})
    bench.give(record.owner, "slow", [b"1"])
    before = bench.registry.owners()
    assert bench.registry.register_unknown_owner(record.owner, {"slow"})
    read = bench.record(record)
    assert read.lists == {"mail": 60000, "slow": 0}
    assert bench.registry.owners() == before
    assert not bench.registry.register_unknown_owner(record.owner, {"slow"})


def test_a_forgotten_tombstone_is_listed_again_not_registered(bench, owner):
    """For a claim that landed after its tombstone was taken off the list, and for nothing else."""
    bench.mark(owner)
    bench.registry.drop_tombstone(owner.owner)
    assert not bench.registry.register_unknown_owner(owner.owner, set())
    assert bench.client.ttl(bench.keys.owner_record(owner.owner)) > 0
    assert not bench.registry.tombstones()
    bench.give(owner.owner, "mail", [b"1"])
    assert bench.registry.register_unknown_owner(owner.owner, set())
    assert bench.client.ttl(bench.keys.owner_record(owner.owner)) > 300 * 86400, (
        "while it is listed"
    )
    assert set(bench.registry.tombstones()) == {owner.owner}
    assert bench.registry.owners() == {}


def test_an_owner_whose_row_alone_was_lost_gets_its_row_back(bench, owner):
    bench.give(owner.owner, "mail", [b"1"])
    bench.client.delete(bench.keys.owners)
    assert bench.registry.register_unknown_owner(owner.owner, {"mail"})
    read = bench.record(owner)
    assert read.process == owner.process, "with the owner it had registered itself"


def as_worker(url: str) -> redis.Redis:
    """One connection that says what each of a worker's says of itself."""
    return redis.Redis.from_url(url, single_connection_client=True, **with_client_defaults({}))


def test_connections_are_looked_up_by_id_in_the_same_run_of_the_server(bench, url):
    run = run_id(bench.client)
    other = as_worker(url)
    record = bench.owner(connections=(other.client_id(),), run_id=run)
    assert run
    assert bench.registry.connected(record, run) is True
    assert bench.registry.connected(record, "another run") is None
    assert bench.registry.connected(record.with_(run_id=""), "") is None
    assert bench.registry.connected(record.with_(connections=()), run) is None
    other.close()
    eventually(lambda: bench.registry.connected(record, run) is False, 5)


@pytest.mark.since("7.2", "before, a server cannot tell connections of this package from others")
def test_cutting_an_owners_connections_ends_them(bench, url):
    run = run_id(bench.client)
    with as_worker(url) as other:
        record = bench.owner(connections=(other.client_id(),), run_id=run)
        cut(bench.client, "another run", record.connections)
        cut(bench.client, "", record.connections)
        assert bench.registry.connected(record, run) is True
        cut(bench.client, run, record.connections)
        eventually(lambda: bench.registry.connected(record, run) is False, 5)


def test_a_prefix_keeps_two_registries_apart(make_bench):
    one, two = make_bench(global_keyprefix="one:"), make_bench(global_keyprefix="two:")
    record = one.owner()
    assert set(one.registry.owners()) == {record.owner}
    assert two.registry.owners() == {}
    assert all(name.startswith("one:") for name in one.key_names())
