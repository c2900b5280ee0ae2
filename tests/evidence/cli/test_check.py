"""`celery superfetch check` and `superfetch-check`: one line, an exit code, and in time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_superfetch.app.reaper import record_pass
from celery_superfetch.console.probe import main
from support.recipes import container, unwrapped
from support.servers.server import free_port
from support.waiting import eventually
from support.workers.bench import Bench, elsewhere, payload
from support.workers.worker import process_env

QUICK = {"heartbeat_interval": 0.5, "owner_ttl": 2, "reap_interval": 3600}


@pytest.fixture
def probe(url, capsys):
    """`probe("--this-host", code=2)`: its one line; `url` names another server."""

    def run(*words: str, code: int = 0, url: str = url) -> str:
        capsys.readouterr()
        assert main(["--broker", url, *words]) == code, capsys.readouterr().out
        [line] = capsys.readouterr().out.splitlines()
        return line

    return run


def test_a_probe_asks_as_the_provider_of_credentials_says(
    fresh_server, capsys, tmp_path, monkeypatch
):
    """kombu takes the name of a class from the URL; redis-py took that for the provider, and the
    probe called a healthy fleet critical."""
    own = fresh_server(requirepass="token")
    (tmp_path / "tokens_of_mine.py").write_text(
        "import redis\n"
        "class Token(redis.CredentialProvider):\n"
        "    def get_credentials(self):\n"
        "        return ('default', 'token')\n"
    )
    monkeypatch.chdir(tmp_path)
    way = f"redis://127.0.0.1:{own.port}/0?credential_provider="
    assert main(["--broker", f"{way}tokens_of_mine.Token"]) == 2
    assert "no live worker is registered" in capsys.readouterr().out
    for wrong, why in (
        ("nowhere.Token", "cannot be created"),
        ("builtins.dict", "is not a redis."),
    ):
        assert main(["--broker", way + wrong]) == 2
        assert why in capsys.readouterr().out


def test_a_warning_that_is_accepted_is_no_reason_to_exit_with_1(cli, one, probe, client):
    client.config_set("save", "")
    assert "WARNING" in probe(code=1)
    probe("--accept", "eviction, no-persistence", code=0)
    options = {"accepted_findings": "no-persistence"}
    found = cli("doctor", "--json", options=options, code=None).json()["findings"]
    [row] = [row for row in found if row["code"] == "no-persistence"]
    assert (row["level"], row["text"][-10:]) == ("note", "(accepted)")
    assert "All is well" in cli("status", options=options).out


@pytest.fixture
def one(make_bench, client):
    """A bench whose own process is a well worker, and where a pass was made; its server saves."""
    before = client.config_get("save")
    client.config_set("save", "3600 1000000")
    bench = make_bench()
    # No heart beats for it, however long a test takes.
    well = {"heartbeat_interval": 3600.0, "owner_ttl": 7200.0}
    bench.worker = bench.owner(node="celery@one", lists=["mail", "mail\x06\x163"], **well)
    reaper = bench.reaper()
    record_pass(reaper, reaper.reap())
    yield bench
    client.config_set("save", before["save"])


def test_nobody_is_there(probe, cli):
    assert probe(code=2).startswith("CRITICAL: no live worker is registered; ")
    assert cli("check", code=2).out.startswith("CRITICAL: no live worker is registered; ")
    found = probe("--this-host", code=2)
    assert found == f"CRITICAL: no worker of host {socket.gethostname()} is registered"


def test_all_is_well(probe, cli, one):
    line = "OK: 1 worker, 0 jobs in flight, 0 waiting, 0 in the dead set"
    assert probe() == line
    assert cli("check").out == f"{line}\n"
    found = cli("check", "--json").json()
    assert (found["status"], found["code"], found["text"]) == ("OK", 0, line)
    assert found["findings"] == []


def test_a_queue_that_nobody_consumes(probe, cli, one):
    one.push("celery", *(payload(n) for n in range(3)))
    # Only the app says that it has this queue, until a pass has seen a job wait there.
    text = "CRITICAL: queue celery: 3 jobs, no worker consumes it"
    assert cli("check", code=2).out == f"{text}\n"
    assert probe() == "OK: 1 worker, 0 jobs in flight, 0 waiting, 0 in the dead set"
    reaper = one.reaper()
    report = reaper.reap()
    report.lists.add("celery")
    record_pass(reaper, report)
    assert "queue celery: 3 jobs, oldest" in probe(code=2)


def test_a_silent_worker_is_a_warning_and_then_critical(probe, one):
    far = one.owner(elsewhere("web-2"), node="celery@two", lists=["far"])

    def says(text, *words, code=0, who=far, silent=70):
        """Until the answer is quick enough for a silence of so many seconds."""

        def found():
            score = one.database.server_time() - silent * 1000
            one.client.zadd(one.keys.owners, {who.owner: score})
            return text in probe(*words, code=code)

        return eventually(found, message=text)

    says(
        "WARNING: worker celery@two on web-2 is silent (no heartbeat for 20 s)",
        silent=20,
        code=1,
    )
    says("CRITICAL: worker celery@two on web-2 is silent (no heartbeat for 70 s)", code=2)
    # What is asked for is what is looked at.
    assert probe("--this-host").startswith("OK: worker celery@one sent a heartbeat")
    assert probe("--node", "celery@one").startswith("OK: worker celery@one sent a heartbeat")
    says("celery@two has sent no heartbeat for 70 s", "--node", "celery@two", code=2)
    assert "celery@three is registered" in probe("--node", "celery@three", code=2)
    three = one.owner(elsewhere("web-3"), node="celery@three")
    words = ("--node", "celery@three")
    says("OK: worker celery@three sent a heartbeat 20 s ago", *words, who=three, silent=20)


def test_the_life_of_a_worker_as_its_pod_asks(probe, cli, worker, db, url):
    def code() -> int:
        return main(["--broker", url, "--this-host"])

    one = worker(options=QUICK, concurrency=1)
    eventually(lambda: code() == 0, message="it is heard")
    one.freeze()
    eventually(lambda: code() == 2, message="silence is found")
    assert "runs on this host but sends no heartbeat" in probe("--this-host", code=2)
    [row] = cli("status", "--json").json()["owners"]
    assert (row["state"], row["verdict"]) == ("silent", "alive"), "nobody knows what it does"
    assert 'superfetch_owners{state="silent"} 1.0' in cli("metrics", "--once").out
    one.thaw()
    eventually(lambda: code() == 0, message="it is heard again")
    [owner] = db.owners()
    one.freeze()  # it reaps who is hung, itself, too
    db.client.hset(f"superfetch:owner:{owner}", "state", "hung")
    assert "its event loop had not ticked" in probe("--this-host", code=2)


def test_the_liveness_probe_of_the_recipe_fails_for_a_frozen_worker_and_not_in_an_outage(
    worker, url
):
    """The control is the program without the filter of the recipe: it fails in an outage too, and
    as a liveness probe would restart every worker."""
    words = container("shop-worker")["livenessProbe"]["exec"]["command"]

    def code(words: list[str], url: str) -> int:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "CELERY_BROKER_URL": url, "PATH": path}
        return subprocess.run(words, env=env, capture_output=True, check=False).returncode

    away = f"redis://127.0.0.1:{free_port()}/0"
    one = worker(options=QUICK, concurrency=1)
    eventually(lambda: code(unwrapped(words), url) == 0, message="it is heard")
    assert (code(words, url), code(words, away), code(unwrapped(words), away)) == (0, 0, 2)
    one.freeze()
    eventually(lambda: code(words, url) == 1, message="silence is found")
    one.thaw()
    eventually(lambda: code(words, url) == 0, message="it is heard again")


@contextmanager
def patient(url):
    """A probe that waits for as long as one does that nobody has told how long."""
    code = "from celery_superfetch.console.probe import main; main()"
    command = [sys.executable, "-c", code, "--broker", url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as asking:
        try:
            yield asking
        finally:
            asking.kill()


@pytest.mark.parametrize("words", [[], ["--this-host"]])
def test_a_server_that_says_nothing_or_is_not_there(probe, cli, words):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silence = f"redis://:secret@127.0.0.1:{silent.getsockname()[1]}/0"
        for ask in (probe, lambda *w, **k: cli("check", *w, **k).out):
            # Who has more time is still waiting when the answer is there.
            with patient(silence) as other:
                connection, _ = silent.accept()
                line = ask(*words, "--timeout", "0.5", code=2, url=silence)
                assert other.poll() is None
                connection.close()
            assert line.startswith("CRITICAL: the broker cannot be reached: ")
            assert "secret" not in line
    nobody = f"redis://:secret@127.0.0.1:{free_port()}/0"
    assert "refused" in probe(*words, code=2, url=nobody)
    assert "refused" in cli("check", *words, code=2, url=nobody).out


def test_an_app_that_cannot_be_served_is_critical(cli):
    found = cli("check", superfetch=False, code=2).out
    assert "CRITICAL: the broker cannot be checked: the app's broker" in found
    found = cli("check", conf={"broker_transport_options": {"strike_limt": 3}}, code=2).out
    assert "did you mean 'strike_limit'" in found


def test_which_server(probe, make_bench, fresh_server, url):
    """A failover list, a replica, a prefix, a unix socket."""
    make_bench(global_keyprefix="shop:").owner(node="celery@shop")
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    assert "celery@shop" in probe("--prefix", "shop:", "--this-host", url=f"{nobody};{url}")
    own = fresh_server(unixsocket=True)
    assert "no live worker" in probe(code=2, url=own.unix_url())
    replica = fresh_server(replicaof=["127.0.0.1", str(own.port)])
    assert "read-only replica" in probe(code=2, url=replica.url())
    assert "--master" in probe(code=2, url="sentinel://127.0.0.1:1")
    assert "check that it begins with redis://" in probe(code=2, url=""), (
        "a variable that is not set"
    )


def test_what_to_do_is_said_once(probe, fresh_server):
    server = fresh_server()
    line = probe(code=2, url=server.url().rpartition("/")[0] + "/99")
    assert line.count("end in /0") == 1
    replica = fresh_server(replicaof=["127.0.0.1", str(server.port)])
    line = probe(code=2, url=replica.url())
    assert "point broker_url at the primary" in line
    assert "check whether it runs" not in line
    server.client().config_set("requirepass", "s3cret")
    line = probe(code=2, url=server.url())
    assert line.endswith(
        ": the server requires a password: put it into the URL, redis://:PASSWORD@host"
    )


@pytest.mark.parametrize(
    "place", ["redis://:s3cr/et@HERE/0", "rediss://:s3cr#et@HERE/0", "redis://HERE/s3cr"]
)
def test_a_url_that_cannot_be_read_is_said_without_any_part_of_it(probe, url, place):
    """A path that is no number is not database 0, where others' jobs may be."""
    for head in ("", f"redis://127.0.0.1:{free_port()}/0;"):
        line = probe(code=2, url=head + place.replace("HERE", url.split("/")[2]))
        assert "the broker's URL cannot be read: percent-encode its password" in line
        assert "s3cr" not in line


def installed(*words: str, code: int, **env: str) -> str:
    """The one line of the console script, run as a probe runs it."""
    script = Path(sys.executable).with_name("superfetch-check")
    done = subprocess.run(
        [script, *words], env=process_env(env), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    [line] = done.stdout.splitlines()
    return line


def test_the_command_as_it_is_installed(one, url):
    assert installed("--this-host", code=0, CELERY_BROKER_URL=url).startswith("OK: worker ")
    assert installed("--broker", url, code=0).startswith("OK: 1 worker, 0 jobs in flight")
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    assert "cannot be reached" in installed("--broker", nobody, code=2, CELERY_BROKER_URL=url)


@pytest.mark.parametrize("query", ["", "?ssl_cert_reqs=CERT_NONE", "?ssl_cert_reqs=none"])
def test_a_server_behind_tls_as_kombu_names_it(tls_port, query):
    server, port = tls_port
    bench = Bench(server.client())
    bench.owner(node="celery@safe")
    url = f"rediss://127.0.0.1:{port}/0{query}"
    found = installed("--node", "celery@safe", code=0, CELERY_BROKER_URL=url)
    assert found.startswith("OK: worker celery@safe sent a heartbeat")


def test_a_certificate_that_is_not_trusted_is_critical_where_the_url_asks_for_it(
    tls_port, certificate
):
    _, port = tls_port
    url = f"rediss://localhost:{port}/0?ssl_cert_reqs=CERT_REQUIRED"
    found = installed("--this-host", code=2, CELERY_BROKER_URL=url)
    assert "certificate verify failed" in found
    found = installed(
        "--this-host", code=2, CELERY_BROKER_URL=f"{url}&ssl_ca_certs={certificate[0]}"
    )
    assert "no worker of host" in found


def test_without_an_app_no_celery_is_loaded(url):
    code = (
        "import sys; from celery_superfetch.console.probe import main; main();"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'celery', 'kombu', 'click'}))"
    )
    environ = {"CELERY_BROKER_URL": url, "PYTHONPATH": ":".join(sys.path)}
    for words in ([], ["--this-host"], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True
        )
        assert done.stdout.endswith("\n[]\n"), done.stderr
    assert json.loads(done.stdout.removesuffix("[]\n"))["code"] == 2
