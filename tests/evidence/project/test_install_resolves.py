"""pip finds versions of everything for each redis-py that an application may have already."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PIP = (sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet")


def requirements() -> list[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser["options"]["install_requires"].split()


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask what would be installed; nothing is."""
    command = [*PIP, "--report", "-", "--retries", "0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def versions(resolved: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert resolved.returncode == 0, resolved.stderr
    found = (entry["metadata"] for entry in json.loads(resolved.stdout)["install"])
    return {entry["name"]: entry["version"] for entry in found}


@pytest.mark.parametrize(
    ("celery", "redis"),
    [
        ("5.5", "5.2"),
        ("5.6", "6.4"),
        ("5.6", "7.4"),
        ("5.6", "8.1"),
        ("5.7", "7.4"),
        ("5.7", "8.1"),
    ],
)
def test_the_package_is_installed_beside_an_applications_redis_py(celery, redis):
    application = [f"celery=={celery}.*", f"kombu=={celery}.*", f"redis=={redis}.*"]
    resolved = pip(*requirements(), *application)
    if resolved.returncode:
        for one in application:
            if (offered := pip("--no-deps", one)).returncode:
                pytest.skip(f"no index offers {one}: {offered.stderr.strip().splitlines()[-1:]}")
    found = versions(resolved)
    assert found["redis"].startswith(f"{redis}.")
    assert found["celery"].startswith(f"{celery}.")
    if (celery, redis) == ("5.6", "7.4"):  # the control: the extra that is not asked for
        extra = [line.replace("kombu>", "kombu[redis]>") for line in requirements()]
        assert "ResolutionImpossible" in pip(*extra, *application).stderr
