"""Loggers whose lines stay lines raise nothing, whatever an error or an argument does."""

from __future__ import annotations

import logging

import pytest

from celery_superfetch.model.log_text import one_line_each
from support.workers.untrusted import NoNotes


class Falsy(Exception):
    def __bool__(self) -> bool:
        raise ValueError("no truth")


class Loud(str):
    def __str__(self) -> str:
        raise ValueError("not to be printed")


@pytest.fixture
def logger() -> logging.Logger:
    return one_line_each(logging.getLogger("superfetch.test.log_text"))


@pytest.mark.parametrize("kind", [NoNotes, Falsy])
def test_an_error_that_cannot_be_formatted_does_not_end_the_caller_of_the_logger(
    logger, caplog, kind
):
    try:
        raise kind("line\nfeed")
    except kind:
        logger.error("It failed.", exc_info=True)
    [record] = caplog.records
    assert kind.__name__ in record.exc_text
    assert "line\nfeed" not in record.exc_text


def test_an_argument_that_cannot_be_printed_does_not_end_the_caller_of_the_logger(
    logger, monkeypatch
):
    """The handler, which formats it, deals with its own errors."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(logger, "propagate", False)
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    try:
        logger.error("It is %s.", Loud("a\nb"))
    finally:
        logger.removeHandler(handler)
