"""Chords on a result backend on Redis: a part counts once, however often it runs, and the part that
completed its chord publishes the body.

``result_backends`` gives these functions to a result backend in place of its own. The process,
thread or greenlet that ran a part counts it. If the process dies between the count and the body,
the part is recovered (put back on its queue): its next run gets the same answer from ``COUNT``, and
publishes the body. If the process dies after the body and before the chord's keys are deleted
(``END``), the next run asks for the body again; but the body is a *step*, which the job's steps
note on the server names as published, so that it is not sent twice.

``fail_part`` counts a part that never ran to its end. ``announcement`` calls it in the run of a
notice, the job that announces a dead-lettered job; if that process dies, the notice is recovered,
and calls it again. A chord whose body the dead-lettered job has published as one message does not
fail.
``worker/unknown_tasks.py`` calls it for a job that no worker can run, before it moves the job to
the dead set: if the worker dies in between, the job is recovered, and its part still counts once.
With ``unknown_tasks="discard"`` Celery has acked the job before the call: if the worker dies in
between, the chord is not failed, and waits.

Foreign names:

celery backends.redis:
    count the parts of chords: RedisBackend.on_chord_part_return(request,state,result)
        RedisBackend._unpack_chord_result(tup,decode)
        RedisBackend.expires RedisBackend.client RedisBackend._chord_result_expires>=5.7
celery app.amqp:
    publish the body: AMQP._retry_publish(publish)>=5.7
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import MethodType
from typing import Any
from uuid import uuid4

from celery import states
from celery.app.task import Context
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, ResultSet, allow_join_result
from celery.utils.log import get_logger

from ..model.foreign import describe
from ..model.log_text import one_line_each
from ..model.step import CONTAINERS, step_name, was_published
from .patient_calls import PatientScript, patiently

logger = one_line_each(get_logger(__name__))

#: Seconds of the publish lease beyond twice ``result_chord_join_timeout``, which is the lease of
#: Celery 5.7. While it lasts, a worker without this package does not publish the body, too.
PUBLISH_LEASE_S = 300
#: Seconds for which Celery 5.7 may find out that a chord has ended.
DONE_S = 300

#: Counts a part. The keys are those of Celery 5.7, in which a worker without this package may
#: count, too:
#:   results: the parts' results, by their index or as a list;
#:   added: how many parts were added after the chord was made (``Task.add_to_chord``);
#:   size: how many parts there were then;
#:   names: which parts were counted; the digest of each part's result, by which another run of the
#:       part finds and replaces the result; and which part completed the chord, with the total,
#:       since parts may be added later;
#:   group: the group's result;
#:   claim: Celery's publish lease, of the part that publishes the body (no claim of a job); "done"
#:       when Celery 5.7 has deleted a chord that has ended.
#: KEYS: results, added, size, names, group, claim
#: ARGV: id, result, "1" if the results are ordered, index, seconds until the keys expire (0:
#:       never), the same for the group's key, seconds of the publish lease, its token
#: Returns: 1 if it is this part that has to publish the body; 0 if not, or the chord has ended
#: Crash: the part is counted, or not; its next run gets the same answer.
COUNT = PatientScript(
    b"""
local results, added, size, names, group, claim = unpack(KEYS)
local id, result, ordered, index = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local expires, group_expires = tonumber(ARGV[5]), tonumber(ARGV[6])
local lease, token = tonumber(ARGV[7]), ARGV[8]
if redis.call('GET', claim) == 'done' then
  return 0
end
local part = id .. ':' .. index
local earlier = false
local is_new = redis.call('SADD', names, part) == 1
if not is_new then
  local there
  if ordered then
    there = redis.call('ZRANGEBYSCORE', results, index, index)
  else
    there = redis.call('LRANGE', results, 0, -1)
  end
  for _, entry in ipairs(there) do
    if not earlier and redis.call('SISMEMBER', names, part .. '=' .. redis.sha1hex(entry)) == 1 then
      earlier = entry
    end
  end
end
if is_new or (earlier and earlier ~= result) then
  redis.call('SADD', names, part .. '=' .. redis.sha1hex(result))
  if ordered then
    redis.call('ZADD', results, index, result)
  else
    redis.call('RPUSH', results, result)
  end
  if earlier then
    redis.call('SREM', names, part .. '=' .. redis.sha1hex(earlier))
    redis.call(ordered and 'ZREM' or 'LREM', results, unpack(ordered and {earlier} or {1, earlier}))
  end
end
local counted = redis.call(ordered and 'ZCARD' or 'LLEN', results)
if expires > 0 then
  for _, key in ipairs({results, added, size, names}) do
    redis.call('EXPIRE', key, expires)
  end
  if group_expires > 0 then
    redis.call('EXPIRE', group, group_expires)
  end
end
local more, total = redis.call('GET', added), redis.call('GET', size)
local completes = false
if total and counted == tonumber(total) + tonumber(more or 0) then
  local complete = 'completed with ' .. counted
  if redis.call('EXISTS', claim) == 0 and redis.call('SADD', names, complete) == 1 then
    redis.call('SADD', names, complete .. ' by ' .. part)
  end
  completes = redis.call('SISMEMBER', names, complete .. ' by ' .. part) == 1
  if completes then
    redis.call('SET', claim, token, 'EX', lease)
  end
end
return completes and 1 or 0
""",
    "count its part of a chord",
)

#: Ends a chord whose body is published or has failed, unless another part has the publish lease by
#: now, or the chord was sent again under the same id.
#: KEYS: claim, and the keys to delete
#: ARGV: token of the publish lease, seconds for which the claim says "done" (0: it is deleted)
#: Crash: the chord is ended, or not; the next run of the part that completed it asks for the body
#:       again, and ends it.
END = PatientScript(
    b"""
local claim, token, done = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('GET', claim) ~= token then
  return
end
redis.call('DEL', unpack(KEYS))
if done > 0 then
  redis.call('SET', claim, 'done', 'EX', done)
end
""",
    "end its chord",
)


def is_on_redis(backend: Any) -> bool:
    """Return whether a result backend is Celery's for Redis."""
    module = sys.modules.get("celery.backends.redis")  # not loaded: no backend is of its class
    return module is not None and isinstance(backend, module.RedisBackend)


def count_parts_once(backend: Any) -> None:
    """Make a result backend on Redis count each part once, and publish the body in the run that
    completes the chord, or in the next run of that part.

    Celery 5.5 and 5.6 count each run. Celery 5.7 counts each part once, but while its publish lease
    lasts, no run may publish the body, not even the next run of the part that has the lease. And it
    deletes the chord's size, or the chord, also if the run ended by ``NotSent`` or ``Fenced`` and
    has published nothing: then the next run could not complete the chord.

    Report: A chord's body is never published if the part that completes it is redelivered at once.
    """
    backend.on_chord_part_return = MethodType(on_chord_part_return, backend)


def on_chord_part_return(
    backend: Any, request: Any, state: str, result: Any, propagate: Any = None, **_: Any
) -> None:
    """Count a part that has ended, and publish the body if it completes the chord; in place of
    Celery's method."""
    token = _count_part(backend, request, state, result)
    if not token:
        return
    body = maybe_signature(request.chord, app=backend.app)
    try:
        results = _collected(backend, request.group)
    except Exception as exc:
        logger.exception("Chord %r raised: %s", request.group, describe(exc))
        error = exc if isinstance(exc, ChordError) else ChordError(f"Join error: {describe(exc)}")
        return _fail(backend, request, body, error, token)
    try:
        _publish(backend, body, results)
    except Exception as exc:
        logger.exception("Chord callback for %r raised: %s", request.group, describe(exc))
        backend.chord_error_from_stack(body, ChordError(f"Callback error: {describe(exc)}"))
    _end(backend, request.group, token)


def fail_part(backend: Any, request: Any, exc: Exception, steps: str = "") -> None:
    """Count a job that will not run as a failed part of its chord, if it is a part. If it completes
    the chord, fail the chord, without reading the results of the other parts: reading one may kill
    the process. Do nothing on a result backend that is not on Redis.

    Arguments:
        steps: the steps note of the job. If it has the chord's body, a single message, the chord is
            ended, and has not failed: the body runs.
    """
    if not (request.chord and is_on_redis(backend)):
        return
    token = _count_part(backend, request, states.FAILURE, exc)
    if token and _was_body_published(request.chord, steps):
        _end(backend, request.group, token)
    elif token:
        body = maybe_signature(request.chord, app=backend.app)
        try:
            raise ChordError(f"Dependency {request.id} raised {describe(exc)}") from exc
        except ChordError as error:  # ``chord_error_from_stack`` reads ``sys.exc_info()``
            _fail(backend, request, body, error, token)


def parts_ahead(chain: Any) -> Iterator[Context]:
    """Yield a request for each link of a chain that follows a job, for ``fail_part``: a link that
    is a part of a chord fails with the link before it."""
    for link in chain or ():
        options = link["options"]
        ids = {"id": options.get("task_id"), "group": options.get("group_id")}
        yield Context({**link, **options, **ids})


def _was_body_published(body: Any, steps: str) -> bool:
    """Return whether a steps note has a chord's body that is published as one message: a task, or a
    chain that begins with one. Of a group, or of the header of a further chord, perhaps not all
    messages were published: then the body has to fail.

    The family of the step has the group of the message, if the body is a part of another chord."""
    first, signatures = body, [body]
    while first.get("subtask_type") == "chain":
        links = first["kwargs"]["tasks"]
        first = links[0]
        signatures += links
    if first.get("subtask_type") in CONTAINERS:
        return False
    groups = {signature["options"].get("group_id") for signature in signatures}
    return any(was_published(steps, step_name(("chord", group), 0)) for group in {None, *groups})


def _keys(backend: Any, group: str) -> list[Any]:
    """Return the keys of a chord, with Celery's suffixes: results, added, size, names, claim."""
    return [backend.get_key_for_group(group, f".{letter}") for letter in "jtsdc"]


def _is_ordered(backend: Any) -> bool:
    """Return whether Celery keeps the parts of a chord in their order: its documented option."""
    return bool(backend.app.conf.result_backend_transport_options.get("result_chord_ordered", True))


def _forgets_ends(backend: Any) -> bool:
    """Return whether Celery, if it sends a chord again under the same id, deletes the claim that
    says "done" (5.7). Before, a chord that is sent again would never be complete."""
    return hasattr(backend, "_chord_result_expires")


def _count_part(backend: Any, request: Any, state: str, result: Any) -> str:
    """Count the part of ``request``. Return the token of its publish lease if its run has to
    publish, or to fail, the body; empty if not."""
    id, group, index = request.id, request.group, request.group_index
    if not (id and group):
        return ""
    *keys, claim = _keys(backend, group)
    encoded = backend.encode([1, id, state, backend.encode_result(result, state)])
    expires = getattr(backend, "chord_expires", backend.expires) or 0  # the former is of 5.7
    of_group = getattr(backend, "_chord_result_expires", 0)
    ordered, place = int(_is_ordered(backend)), "+inf" if index is None else index
    lease = PUBLISH_LEASE_S + int(2 * (backend.app.conf.result_chord_join_timeout or 0))
    token = uuid4().hex
    args = [id, encoded, ordered, place, expires, of_group, lease, token]
    keys = [*keys, backend.get_key_for_group(group), claim]
    return token if COUNT(keys, args, client=backend.client) else ""


def _collected(backend: Any, group: str) -> list[Any]:
    """Read what the parts have returned; ChordError if one has failed. Waits for a server that is
    away: otherwise a chord whose parts have all succeeded would fail."""
    read = partial(patiently, action="read the parts of its chord", if_away=True)
    header = read(lambda: GroupResult.restore(group, app=backend.app))
    if header is not None:  # there are groups among the parts
        header.on_ready()
        join = header.join_native if header.supports_native_join else header.join
        timeout = backend.app.conf.result_chord_join_timeout

        def joined() -> tuple[list[Any], Exception | None]:
            # A part may have failed with an error of some Redis server. If that left this function,
            # it would be taken for a refusal of this one, and the job would run again for ever.
            # ``maybe_throw`` raises it; before 5.7 ``join`` does, if the part is in an inner group.
            try:
                results = list(join(timeout=timeout, propagate=False))
                header.maybe_throw()
                return results, None
            except Exception as exc:
                if any(part.result is exc for part in _parts(header)):
                    return [], exc
                raise

        with allow_join_result():
            results, failure = read(joined)
        if failure is not None:
            raise failure
        return results
    key, *_ = _keys(backend, group)
    all_parts = backend.client.zrange if _is_ordered(backend) else backend.client.lrange
    parts = read(lambda: all_parts(key, 0, -1))
    return [backend._unpack_chord_result(part, backend.decode) for part in parts]


def _parts(header: Any) -> Iterator[Any]:
    """Yield the results of the parts of a group, also of the groups in it."""
    for result in header.results:
        if isinstance(result, ResultSet):
            yield from _parts(result)
        else:
            yield result


def _publish(backend: Any, body: Any, results: list[Any]) -> None:
    """Publish the body of a chord; on Celery 5.7 as it does, with a pause before each retry."""
    retry_publish = getattr(backend.app.amqp, "_retry_publish", None)
    if retry_publish is None:
        body.delay(results)
    else:
        retry_publish(body.delay, results)


def _end(backend: Any, group: str, token: str) -> None:
    """End a chord whose body is published, or has failed."""
    *keys, claim = _keys(backend, group)
    END([claim, *keys], [token, DONE_S if _forgets_ends(backend) else 0], client=backend.client)


def _fail(backend: Any, request: Any, body: Any, exc: ChordError, token: str) -> None:
    """Fail the body of a chord and delete the chord's size, without which no later part can fail it
    again. Results and names stay until they expire, as in Celery."""
    backend.chord_error_from_stack(body, exc)
    _results, _added, size, _names, claim = _keys(backend, request.group)
    END([claim, size], [token, 0], client=backend.client)
