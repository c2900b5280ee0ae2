"""The recipe for systemd of docs/run/deploying.md: valid, and a unit stops, restarts and fails as
the docs promise."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from support.recipes import PROGRAMS, SYSTEMD, exec_start, seconds, shop, tool, unit, units

WORKER = "shop-worker@.service"


def verify(folder: Path, change: tuple[str, str] = ("", "")) -> str:
    """What systemd has to say of the units, with the programs where they are here."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    programs = f"{Path(sys.executable).parent}/"
    for name in units():
        text = (SYSTEMD / name).read_text().replace(PROGRAMS, programs).replace(*change)
        (folder / name).write_text(text)
    done = tool(analyze, "verify", "--man=no", *(f"./{name}" for name in units()), cwd=folder)
    # Of an unknown key it says that it ignores it, and that all is well.
    said = done.stdout + done.stderr
    return said or str(done.returncode or "")


def test_systemd_reads_all_units(tmp_path):
    assert verify(tmp_path) == ""


@pytest.mark.parametrize("change", [("KillMode", "KilMode"), ("=mixed", "=mixt"), ("celery", "c")])
def test_the_control_is_not_taken(tmp_path, change):
    assert verify(tmp_path, change) != ""


EXPOSED_MOST = 40  # tenths of systemd's 10 for a unit that it protects from nothing


@pytest.mark.parametrize("name", [name for name in units() if name.endswith("service")])
def test_a_unit_has_no_more_of_its_host_than_it_needs(tmp_path, name):
    verify(tmp_path)

    def exposed(text: str) -> bool:
        (tmp_path / name).write_text(text)
        words = "security", "--offline=yes", f"--threshold={EXPOSED_MOST}", f"./{name}"
        done = tool("systemd-analyze", *words, cwd=tmp_path)
        assert "Overall exposure level" in done.stdout, done.stderr
        return bool(done.returncode)

    whole = (SYSTEMD / name).read_text()
    assert not exposed(whole)
    assert exposed(whole.partition("NoNewPrivileges")[0] + "\n"), "the control: a bare unit"


def test_a_worker_stops_by_itself_and_has_the_time_for_it():
    service = unit(WORKER)["Service"]
    # Its pool processes get no TERM of their own: they would end in the middle of their jobs.
    assert service["KillMode"] == "mixed"
    assert service["KillSignal"] == "SIGTERM"
    assert seconds(service["TimeoutStopSec"]) > shop().conf.task_time_limit + 10


def test_a_death_in_the_pool_is_the_affair_of_its_worker():
    assert unit(WORKER)["Service"]["OOMPolicy"] == "continue"


@pytest.mark.parametrize("name", [name for name in units() if "check" not in name])
def test_what_has_ended_is_started_again(name):
    service = unit(name)["Service"]
    assert service["Type"] == "exec"
    assert service["Restart"] == "always"
    assert unit(name)["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("name", [name for name in units() if name.endswith("service")])
def test_each_has_the_environment_and_runs_as_nobody_special(name):
    service = unit(name)["Service"]
    assert service["EnvironmentFile"] == "/etc/shop.env"
    assert service["User"] == "shop"
    assert service["ExecStart"].startswith(PROGRAMS)


def test_workers_of_one_machine_have_names_of_their_own():
    first, second = exec_start(WORKER, "1"), exec_start(WORKER, "2")
    assert first[first.index("-n") + 1] == "shop1@%h"
    assert second[second.index("-n") + 1] == "shop2@%h"


def test_a_warning_does_not_fail_the_check_and_a_timer_starts_it():
    assert unit("shop-check.service")["Service"]["SuccessExitStatus"] == "1"
    assert unit("shop-check.service")["Service"]["Type"] == "oneshot"
    assert unit("shop-check.timer")["Timer"]["OnCalendar"] == "minutely"
