"""Chords on a result backend on Redis: a part counts once, however often it runs, and the part that
completed its chord publishes the body.

``result_backends`` gives these functions to a result backend in place of its own. The process,
thread or greenlet that ran a part counts it. If the process dies between the count and the body,
the part is recovered (put back on its queue): its next run gets the same answer from ``COUNT``, and
publishes the body. If the process dies after the body and before the chord's keys are deleted
(``_forget``), the next run asks for the body again; but the body is a *step*, which the job's steps
note on the server names as published, so that it is not sent twice.

``fail_part`` counts a part that never ran to its end. ``announcement`` calls it in the run of a
notice, the job that announces a dead-lettered job; if that process dies, the notice is recovered,
and calls it again. ``worker/unknown_tasks.py`` calls it for a job that no worker can run, when the
job has left its queue: if the worker dies just before, the chord is not failed, and waits.

Foreign names:

celery backends.redis:
    count the parts of chords: RedisBackend.on_chord_part_return(request,state,result)
        RedisBackend._unpack_chord_result(tup,decode)
        RedisBackend.expires RedisBackend.client
        RedisBackend._chord_part_return_script>=5.7 RedisBackend._chord_result_expires>=5.7
    let the next run of a part publish the body: RedisBackend._chord_cleanup_script>=5.7
        CHORD_CLEANUP_LUA>=5.7 RedisBackend._chord_claim_extend_script>=5.7
        CHORD_CLAIM_EXTEND_LUA>=5.7
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import MethodType
from typing import Any

from celery import states
from celery.app.task import Context
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result
from celery.utils.log import get_logger

from ..model.foreign import describe
from ..model.log_text import one_line_each
from .patient_calls import PatientScript, patiently

logger = one_line_each(get_logger(__name__))

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
#:       never), the same for the group's key, seconds of the publish lease (0: none), its token
#: Returns: how many parts are counted (-1: the chord has ended), how many were added, how many
#:       there were, 1 if it is this part that has to publish the body
#: Crash: the part is counted, or not; its next run gets the same answer.
COUNT = PatientScript(
    b"""
local results, added, size, names, group, claim = unpack(KEYS)
local id, result, ordered, index = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local expires, group_expires = tonumber(ARGV[5]), tonumber(ARGV[6])
local lease, token = tonumber(ARGV[7]), ARGV[8]
if redis.call('GET', claim) == 'done' then
  return {-1, 0, 0, 0}
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
  if completes and lease > 0 then
    redis.call('SET', claim, token, 'EX', lease)
  end
end
return {counted, more, total, completes and 1 or 0}
""",
)


def is_on_redis(backend: Any) -> bool:
    """Return whether a result backend is Celery's for Redis."""
    module = sys.modules.get("celery.backends.redis")  # not loaded: no backend is of its class
    return module is not None and isinstance(backend, module.RedisBackend)


def count_parts_once(backend: Any) -> None:
    """Make a result backend on Redis count each part once."""
    if hasattr(type(backend), "_chord_part_return_script"):
        patch_scripts(backend)
    else:  # 5.5 and 5.6, which count each run of a part
        backend.on_chord_part_return = MethodType(on_chord_part_return, backend)


def patch_scripts(backend: Any) -> None:
    """Replace the scripts of a Celery 5.7 backend. Celery counts a part once. But while its publish
    lease lasts, no run may publish the body, not even the next run of the part that has the lease:
    ``COUNT`` lets that one. And Celery deletes the chord also if the body was not published, since
    the run was ended by ``NotSent`` or ``Fenced``: then the next run could not complete it.

    Report: A chord's body is never published if the part that completes it is redelivered at once.
    """
    celery_redis = sys.modules["celery.backends.redis"]
    clean = PatientScript(celery_redis.CHORD_CLEANUP_LUA.encode())
    extend = PatientScript(celery_redis.CHORD_CLAIM_EXTEND_LUA.encode())

    def clean_up(**call: Any) -> Any:
        # NotSent (the server refused the body) and Fenced (the job belongs to another owner) derive
        # from BaseException: the body was not published, so the chord stays. True: Celery warns of
        # a chord that was not deleted.
        exc = sys.exc_info()[1]
        return clean(**call) if exc is None or isinstance(exc, Exception) else True

    vars(backend).update(
        _chord_part_return_script=COUNT,
        _chord_claim_extend_script=extend,
        _chord_cleanup_script=clean_up,
    )


def on_chord_part_return(
    backend: Any, request: Any, state: str, result: Any, propagate: Any = None, **_: Any
) -> None:
    """Count a part that has ended, and publish the body if it completes the chord; in place of the
    method of Celery 5.5 and 5.6."""
    if not _completes(backend, request, state, result):
        return
    body = maybe_signature(request.chord, app=backend.app)
    try:
        results = _collected(backend, request.group)
    except Exception as exc:
        logger.exception("Chord %r raised: %s", request.group, describe(exc))
        error = exc if isinstance(exc, ChordError) else ChordError(f"Join error: {describe(exc)}")
        return _fail(backend, request, body, error)
    try:
        body.delay(results)
    except Exception as exc:
        logger.exception("Chord callback for %r raised: %s", request.group, describe(exc))
        backend.chord_error_from_stack(body, ChordError(f"Callback error: {describe(exc)}"))
    _forget(backend, *_keys(backend, request.group))


def fail_part(backend: Any, request: Any, exc: Exception) -> None:
    """Count a job that will not run as a failed part of its chord, if it is a part. If it completes
    the chord, fail the chord, without reading the results of the other parts: reading one may kill
    the process. Do nothing on a result backend that is not on Redis."""
    if request.chord and is_on_redis(backend) and _completes(backend, request, states.FAILURE, exc):
        body = maybe_signature(request.chord, app=backend.app)
        try:
            raise ChordError(f"Dependency {request.id} raised {describe(exc)}") from exc
        except ChordError as error:  # ``chord_error_from_stack`` reads ``sys.exc_info()``
            _fail(backend, request, body, error)


def parts_ahead(chain: Any) -> Iterator[Context]:
    """Yield a request for each link of a chain that follows a job, for ``fail_part``: a link that
    is a part of a chord fails with the link before it."""
    for link in chain or ():
        options = link["options"]
        ids = {"id": options.get("task_id"), "group": options.get("group_id")}
        yield Context({**link, **options, **ids})


def _keys(backend: Any, group: str) -> list[Any]:
    """Return the keys of a chord, with Celery's suffixes: results, added, size, names, claim."""
    return [backend.get_key_for_group(group, f".{letter}") for letter in "jtsdc"]


def _is_ordered(backend: Any) -> bool:
    """Return whether Celery keeps the parts of a chord in their order: its documented option."""
    return bool(backend.app.conf.result_backend_transport_options.get("result_chord_ordered", True))


def _completes(backend: Any, request: Any, state: str, result: Any) -> bool:
    """Count the part of ``request``; return whether its run has to publish, or to fail, the
    body."""
    id, group, index = request.id, request.group, request.group_index
    if not (id and group):
        return False
    *keys, claim = _keys(backend, group)
    encoded = backend.encode([1, id, state, backend.encode_result(result, state)])
    expires = getattr(backend, "chord_expires", backend.expires) or 0  # the former is of 5.7
    of_group = getattr(backend, "_chord_result_expires", 0)
    ordered, place = int(_is_ordered(backend)), "+inf" if index is None else index
    args = [id, encoded, ordered, place, expires, of_group, 0, ""]
    keys = [*keys, backend.get_key_for_group(group), claim]
    return bool(COUNT(keys, args, client=backend.client)[3])


def _collected(backend: Any, group: str) -> list[Any]:
    """Read what the parts have returned; ChordError if one has failed."""
    action = "read the parts of its chord"
    header = patiently(lambda: GroupResult.restore(group, app=backend.app), action)
    if header is not None:  # there are groups among the parts
        header.on_ready()
        join = header.join_native if header.supports_native_join else header.join
        with allow_join_result():
            timeout = backend.app.conf.result_chord_join_timeout
            return list(join(timeout=timeout, propagate=True))
    key, *_ = _keys(backend, group)
    read = backend.client.zrange if _is_ordered(backend) else backend.client.lrange
    parts = patiently(lambda: read(key, 0, -1), action)
    return [backend._unpack_chord_result(part, backend.decode) for part in parts]


def _fail(backend: Any, request: Any, body: Any, exc: ChordError) -> None:
    """Fail the body of a chord and delete the chord's size, without which no later part can fail it
    again. Results and names stay until they expire, as in Celery."""
    backend.chord_error_from_stack(body, exc)
    _results, _added, size, _names, claim = _keys(backend, request.group)
    _forget(backend, size, claim)


def _forget(backend: Any, *keys: Any) -> None:
    patiently(lambda: backend.client.delete(*keys), "end its chord")
