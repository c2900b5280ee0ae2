"""A reader who does what a page says, in a fresh folder with a server of its own."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

from support.house import HERE
from support.pages.blocks import Block, fate
from support.process import Process, all_of
from support.servers.server import Server
from support.waiting import eventually

SHIMS = Path(__file__).with_name("shims")
#: The address in all pages; that of the test's server takes its place.
ADDRESS = "redis://localhost:6379"
#: How long a block may take, and how long what runs in the background may take to end.
PATIENCE, FAREWELL = 60, 3


class Reader:
    """Does blocks, one after the other. All that it has started ends with it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.home = folder / "home"
        self.logs = folder / "logs"
        self.home.mkdir()
        self.url = server.url().removesuffix("/0")
        self.env = self._environment(folder / "bin")
        self.started: list[Process] = []
        self.background: list[Process] = []

    def _environment(self, programs: Path) -> dict[str, str]:
        """The venv's programs come first; before them those that stand in for others."""
        venv = Path(sys.executable).parent
        programs.mkdir()
        for name in ("python", "python3"):
            (programs / name).symlink_to(SHIMS / "python.sh")
        for name, script in {
            "pip": "pip.py",
            "pip3": "pip.py",
            "redis-cli": "redis_cli.py",
            "kubectl": "kubectl.py",
        }.items():
            instead = programs / name
            instead.write_text(f'#!/bin/sh\nexec {sys.executable} {SHIMS / script} "$@"\n')
            instead.chmod(0o755)
        return {
            "PATH": f"{programs}:{venv}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "PYTHONPATH": str(HERE),
            "PYTHONUNBUFFERED": "1",
            # Without `-l INFO` a worker does not say that it is ready.
            "CELERY_WORKER_LOGLEVEL": "INFO",
            "CELERY_BEAT_LOGLEVEL": "INFO",
            "PAGE_PYTHON": sys.executable,
            "PAGE_VENV": str(venv),
            "PAGE_BIN": str(programs),
            "PAGE_SERVER": f"{self.url}/0",
        }

    def read(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            began = time.monotonic()
            self.do(block)
            print(f"{block.place} {fate(block)}, {time.monotonic() - began:.1f} s")

    def do(self, block: Block) -> None:
        """Do what it says. What fails says the page and the line."""
        decided = fate(block)
        text = block.text.replace(ADDRESS, self.url)
        for wanted in filter(None, block.marks.get("needs", "").split(", ")):
            if not installed(Requirement(wanted)):
                pytest.skip(f"{block.place}: {wanted} is not installed")
        if decided.startswith("undecided"):
            fail(block, decided)
        if decided == "file":
            file = self.home / block.marks["file"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if decided in ("file", "parsed"):
            parse(block)
        if decided == "run":
            self._run(block, text)

    def _run(self, block: Block, text: str) -> None:
        try:
            self._start(block, text)
        except (AssertionError, pytest.fail.Exception):
            for process in self.background:
                print(f"--- {process.title}, in the background, said\n{process.tail(30)}")
            raise

    def _start(self, block: Block, text: str) -> None:
        # So many lines above it that what bash and Python say of lines is true of the page.
        text = "\n" * (block.line - 1) + text
        shell = block.language == "sh"
        any_exit = "any exit" in block.marks
        bash = ["bash", "-c"] if any_exit else ["bash", "-e", "-c"]
        argv = [*bash, text, block.page.name] if shell else ["python", "-c", text]
        process = Process(
            argv,
            log=self.logs / f"{len(self.started)}.log",
            env=self.env,
            cwd=self.home,
            title=block.place,
        )
        self.started.append(process)
        try:
            if "background" in block.marks:
                self.background.append(process)
                eventually(
                    lambda: ready(process, block.text) or not process.alive(),
                    PATIENCE,
                    message="it is ready",
                )
                if not process.alive():
                    fail(block, "it has ended, and should run in the background", process)
            elif (code := process.wait_exit(PATIENCE)) and not any_exit:
                fail(block, f"exit status {code}", process)
        except AssertionError as exc:
            fail(block, str(exc).partition("\n")[0], process)

    def close(self) -> None:
        """End all of it, what has left its parents as well."""
        # A shell whose program ends starts the next one: that is ended in a turn of its own.
        while left := self.running():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
            _, stubborn = psutil.wait_procs(left, FAREWELL)
            for process in stubborn:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(stubborn, FAREWELL)
        for started in self.started:
            started.close()

    def running(self) -> list[psutil.Process]:
        """All that lives of what it has started."""
        return all_of(*self.started)


def installed(wanted: Requirement) -> bool:
    with contextlib.suppress(PackageNotFoundError):
        return version(wanted.name) in wanted.specifier
    return False


def ready(process: Process, command: str) -> bool:
    """Whether a background block has begun: each of its workers, beat, or else whatever listens."""
    workers = len(re.findall(r"\bcelery\b.*\sworker\b", command))
    if workers:
        return process.log().count(" ready.") >= workers
    if re.search(r"\bcelery\b.*\sbeat\b", command):
        return "beat: Starting" in process.log()
    family = [psutil.Process(process.pid), *process.children()]
    return any(
        link.status == psutil.CONN_LISTEN for one in family for link in one.net_connections("tcp")
    )


PARSERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "toml": tomllib.loads,
    "ini": lambda text: configparser.ConfigParser(strict=False, interpolation=None).read_string(
        text
    ),
    "python": lambda text: compile(text, "block", "exec"),
}


def parse(block: Block) -> None:
    try:
        PARSERS.get(block.language, str)(block.text)
    except Exception as exc:
        fail(block, f"no valid {block.language}: {exc}")


def fail(block: Block, why: str, process: Process | None = None) -> None:
    said = f"\n--- it said\n{process.tail()}" if process else ""
    pytest.fail(f"{block.place}: {why}\n{block.text}{said}", pytrace=False)
