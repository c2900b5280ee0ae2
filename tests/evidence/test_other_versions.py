"""A real worker on a version that nobody has tested: it says so, and claims nothing."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("version", "pool", "pin"),
    [
        ("kombu==5.8.0", "threads", "pip install 'kombu>=5.5,<5.8'"),
        ("celery==5.8.0", "prefork", "pip install 'celery>=5.5,<5.8'"),
        ("redis==9.0.0", "solo", "pip install 'redis>=5.0,<9'"),
    ],
)
def test_a_worker_refuses_to_start(worker, shop, db, version, pool, pin):
    shop.note.delay("job")
    env = {"VERSION": version}
    one = worker(app="support.apps.versioned", pool=pool, env=env, ready=False)
    assert one.wait_exit()
    one.wait_gone()
    project, _, number = version.partition("==")
    lines = [line for line in one.log().splitlines() if f"not with {number}" in line]
    assert lines, one.tail()
    assert f"tested with {project} " in lines[0]
    assert pin in lines[0]
    assert db.waiting() == ["job"]
    assert not db.owners()


@pytest.mark.parametrize(
    ("version", "told"),
    [("kombu==5.8.0", "SUPERFETCH_ANY_VERSION=1"), ("celery==5.7.99", "used nevertheless")],
)
def test_one_that_may_be_used_is_told_of_once(worker, shop, version, told):
    env = {"VERSION": version, "SUPERFETCH_ANY_VERSION": "1"}
    one = worker(app="support.apps.versioned", pool="threads", env=env)
    assert shop.add.delay(2, 3).get(timeout=30) == 5
    [line] = [line for line in one.log().splitlines() if told in line]
    assert "WARNING" in line
