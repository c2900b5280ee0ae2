"""What a worker and the doctor say of a service that leaves something out."""

from __future__ import annotations

import pytest

from support.servers.database import Database
from support.servers.managed import Manners
from support.waiting import eventually


def test_scripts_run_where_the_version_promises_more_than_the_server_knows(
    worker, make_app, ledger, managed
):
    """Dragonfly, Garnet and builds of KeyDB name a version of 7 or later, and compile no script
    that begins with "#!lua": the worker ended, by an error of the compiler."""
    own, service = managed(Manners(flags_line=False, info={"redis_version": "7.4.0"}))
    worker(url=service.url(), result_url=own.url(1), concurrency=1)
    jobs = [f"n{n}" for n in range(20)]
    note = make_app(superfetch=False, url=own.url()).tasks["shop.note"]
    for job in jobs:
        note.delay(job)
    eventually(lambda: ledger.runs() == dict.fromkeys(jobs, 1))
    eventually(lambda: not Database(own.client()).private_lists(), message="all is settled")


@pytest.mark.parametrize(
    ("manners", "said"),
    [
        (
            Manners(unknown=("EVAL", "EVALSHA", "SCRIPT")),
            "the server does not run Lua scripts (unknown command 'EVAL'",
        ),
        (Manners(slots=True), 'broker_transport_options = {"global_keyprefix": "{shop}:"}'),
    ],
    ids=["no scripts", "slots that it hides"],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    worker, make_app, ledger, managed, manners, said
):
    own, service = managed(manners)
    make_app(superfetch=False, url=own.url()).tasks["shop.note"].delay("job")
    one = worker(url=service.url(), result_url=own.url(1), concurrency=1, ready=False)
    assert one.wait_exit() != 0
    assert said in one.log()
    assert "Traceback" not in one.log()
    assert Database(own.client()).waiting() == ["job"], "nothing was claimed"


def test_a_command_that_the_service_leaves_out_is_named_with_what_is_lost(cli, managed):
    """ "Unknown command", as services say, and not "no permission", as an ACL does."""
    _, service = managed(Manners(unknown=("CLIENT", "CONFIG", "LMOVE")))
    done = cli("doctor", "--json", url=service.url(), code=1)
    found: dict[str, list[str]] = {}
    for one in done.json()["findings"]:
        found.setdefault(one["code"], []).append(f"{one['level']}: {one['text']}")
    [required] = found["missing-required"]
    assert required.startswith(
        "critical: the server does not support lmove: workers cannot work with it"
    )
    optional = " ".join(found["missing-optional"])
    assert "client|list: a dead worker of another host is declared dead after owner_ttl" in optional
    assert "config|get: it is not known whether the server saves" in optional
    assert not {"acl-required", "acl-optional", "acl-keys"} & set(found)


def test_a_full_server_refuses_writes_and_lacks_no_command(cli, fresh_server):
    own = fresh_server()
    own.client().set("x", "x" * 2**20)
    own.client().config_set("maxmemory", "1mb")
    done = cli("doctor", "--json", url=own.url(), code=1)
    assert not any(one["code"].startswith("missing") for one in done.json()["findings"])
