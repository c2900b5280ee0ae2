"""Does every run of a script once more, in plain Python; its reply must be the one that follows.

`machine.py` makes the ``Truth``, and `cast.py` calls ``saw`` after each call to the server.

It also judges each decision by what really was: which job ended its process, and what ran then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.job import claim_id, claim_number
from celery_superfetch.model.step import PUBLISHED, was_published
from celery_superfetch.store.database import chunks
from celery_superfetch.store.private_lists import STEPS, WAITS
from celery_superfetch.store.redis.call import Call
from model.truth import Card, Known, Verdict


class Truth(Known):
    """The model, as it changes."""

    def publish(self, queue_list: str, payload: bytes) -> None:
        self.cards[payload].chances += self.copies(payload) > 0
        self.published[payload] += 1
        self.lists[self.keys.queue(queue_list)][payload] += 1

    def move(self, source: str, target: str, payload: bytes) -> None:
        """Move one item from key to key: a change that no script made."""
        assert self._take(source, payload)
        self.lists[target][payload] += 1

    def drain_probation(self) -> None:
        """An operator's rollback ends it for all; they are marked, and go on it again."""
        self.rolled_back = True
        for name in self.on_probation:
            suspects = self.lists[self.keys.probation(name)]
            self.lists[self.keys.queue(name)] += suspects
            for payload in suspects:
                self.cards[payload].chances += suspects[payload]
            suspects.clear()

    def saw(self, call: Call, reply: Any) -> None:
        """Check a script's reply: it must be the one that follows from the state before it. Change
        the state as the script did."""
        happened: Callable[[Call, Any], None] | None = getattr(self, f"_{call.name.lower()}", None)
        if happened is not None:
            assert not isinstance(reply, Exception), (call.name, reply)
            happened(call, reply)

    def _take(self, key: str, payload: bytes) -> bool:
        """Remove one item; False where there is none."""
        if self.lists[key][payload] <= 0:
            return False
        self.lists[key][payload] -= 1
        return True

    def _clear(self, payload: bytes) -> None:
        self.tokens.pop(payload, None)  # begun anew, by whoever's clock
        self.cards[payload] = Card(chances=max(0, self.copies(payload) - 1))

    def _owner_of(self, key: str) -> str:
        return key.removeprefix(self.keys.private(""))

    def end(self, owner: str, id: str) -> tuple[bytes | None, bool]:
        """A claim ends: its payload, None if it is over already, and whether it ran."""
        ran = id in self.running[owner]
        self.running[owner].discard(id)
        self.steps[owner].pop(id, None)
        return self.held[owner].pop(id, None), ran

    def begin(self, owner: str, id: str, payload: bytes) -> None:
        """A claim is made: with it goes what the job has handed on, and a greater token."""
        self.held[owner][id] = payload
        if steps := self.cards[payload].steps:
            self.steps[owner][id] = steps
        # Of copies nobody knows which is which.
        token = max(claim_number(id), self.cards[payload].token + 1)
        assert token > self.tokens.get(payload, 0) or self.published[payload] > 1
        self.tokens[payload] = token

    def go_back(self, owner: str, id: str, payload: bytes) -> None:
        """The next claim of a job begins with what this one has handed on."""
        card = self.cards[payload]
        card.steps = self.steps[owner].get(id) or card.steps
        card.token = max(claim_number(id), card.token + 1)

    def _heartbeat(self, call: Call, reply: Any) -> None:
        owner = call.args[0]
        assert (reply[0] == b"reaped") == (owner in self.reaped)
        if reply[0] == b"ok" and len(call.keys) == 8:  # it registers
            self.owners.add(owner)
            self.held[owner]
        if reply[0] == b"ok":
            assert {name.decode() for name in reply[7]} == self.paused
        if reply[0] == b"ok" and "stopping" in call.args:
            self.stopping.add(owner)

    def _mark(self, call: Call, reply: Any) -> None:
        owner = call.args[0]
        if reply is None:
            self.notable["a mark came too late"] += 1
            return
        assert owner in self.owners
        self.owners.discard(owner)
        assert reply == len(self.running[owner])
        self.reaped[owner] = Verdict(reply, owner in self.stopping)

    def _leave(self, call: Call, reply: Any) -> None:
        owner = call.args[0]
        left = len(self.held[owner]) + sum(self.lists[key].total() for key in call.keys[6:])
        assert reply == (-1 if owner in self.reaped else left)
        if reply == 0:
            self.owners.discard(owner)

    def _claim(self, call: Call, reply: Any) -> None:
        owner, number, (*named,) = call.args[0], call.args[8], call.args[11:]
        landed = {at: (size, end) for at, size, end in chunks(named, 3)}
        assert (reply is not None) == (owner in self.owners)
        if reply is None:
            return
        started, rows, _, closed = reply
        names = [key.removeprefix(self.keys.prefix) for key in call.keys[4:]]
        assert closed == [at for at, name in enumerate(names, 1) if name in self.paused]
        self.notable["a claim finds a paused queue"] += bool(closed)
        assert started == min(call.args[7], len(rows) // 3)
        triples = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
        for offset, (at, payload, mark) in enumerate(triples):
            queue = call.keys[int(at) + 3]
            name = queue.removeprefix(self.keys.prefix)
            assert name not in self.paused
            landing = self.keys.landing(owner, name)
            if payload == 1:  # the caller has it from its read
                [payload] = self._recognised(landing, *landed[at])
                self.notable["what landed is not sent again"] += 1
            elif at in landed:
                assert not self._is(payload, *landed[at]) or not self.lists[landing][payload]
            if at in landed and self._take(landing, payload):
                self.notable["what landed has a name"] += 1
            else:
                assert self._take(queue, payload)
            assert (mark != 0) == self.cards[payload].counted
            id = claim_id(number + offset, name)
            assert id not in self.held[owner]
            self.begin(owner, id, payload)
            if offset < started:
                self.running[owner].add(id)
                self.notable["started with its claim"] += 1

    def _is(self, payload: bytes, size: int, end: bytes) -> bool:
        return bool(size) and len(payload) == size and payload.endswith(end)

    def _recognised(self, landing: str, size: int, end: bytes) -> list[bytes]:
        """The payloads in a landing list that are as large, and end as said."""
        lying = self.lists[landing]
        return [raw for raw in lying if lying[raw] > 0 and self._is(raw, size, end)]

    def _step(self, call: Call, reply: Any) -> None:
        owner, (id, name, _, message, _) = self._owner_of(call.keys[0]), call.args
        payload = self.held[owner].get(id)
        if payload is None:
            assert reply == -1
            self.notable["a step of another's job"] += 1
            return
        before = self.steps[owner].get(id, "")
        assert reply == (not was_published(before, name))
        self.notable["a step" if reply else "a step that was handed on before"] += 1
        if reply:
            self.steps[owner][id] = with_step(before, name)
            self.handed_on[payload, name] += 1
            self.publish(call.keys[1].removeprefix(self.keys.prefix), message)

    def _return_landed(self, call: Call, reply: Any) -> None:
        total = 0
        for landing, queue in zip(call.keys[::2], call.keys[1::2], strict=True):
            total += self.lists[landing].total()
            self.lists[queue] += self.lists[landing]
            self.lists[landing].clear()
        assert reply == total
        self.notable["what landed goes back"] += total

    def _probation(self, call: Call, reply: Any) -> None:
        (_, _, probation, *_), (owner, name, *_, id) = call.keys, call.args
        waiting = self.lists[probation].total()
        expected = b"ok" if waiting else b"none"
        if name in self.paused:
            expected = b"paused"
        if owner not in self.owners:
            expected = b"unregistered"
        assert reply[0] == expected
        if expected in (b"ok", b"none") and waiting <= 1:
            self.on_probation.discard(name)
        if expected == b"ok":
            assert self._take(probation, reply[1])
            self.begin(owner, id, reply[1])
            self.running[owner].add(id)
            self.notable["a suspect has its turn"] += 1

    def begins(self, payload: bytes) -> None:
        """A job was started. Once it has struck as often as it may, that must not be."""
        card, limit = self.cards[payload], self.limit(payload)
        if limit is not None:
            # A suspect strike is never the last, so one that had neighbours runs twice at least.
            most = max(limit, 2)
            assert card.blamed < most + card.chances
            if not card.chances:
                assert card.runs < most, "it ended its owners as often as it may"
                assert card.runs + card.deployed < most + self.config.recovery_limit
        card.runs += 1

    def _hdel(self, call: Call, reply: Any) -> None:
        """Jobs without a history are acked, and others start, by one plain command."""
        owner, removed = self._owner_of(call.keys[0]), 0
        acked = [name for name in call.args if not name.startswith((WAITS, STEPS))]
        for id in acked:
            held = id in self.held[owner]
            removed += held + (held and id not in self.running[owner]) + (id in self.steps[owner])
            self._settles(owner, id, counts=False)
        for name in call.args:
            id = name.removeprefix(WAITS)
            if not name.startswith(WAITS) or id in acked:
                continue
            if id in self.held[owner]:
                removed += id not in self.running[owner]
                self.running[owner].add(id)
                self.notable["started beside an ack" if acked else "started"] += 1
            else:
                self.notable["a start came too late"] += 1
        assert reply == removed

    def _wait(self, call: Call, reply: Any) -> None:
        """Jobs that have not begun count as running no more."""
        self.running[self._owner_of(call.keys[0])].difference_update(call.args)

    def _ack(self, call: Call, reply: Any) -> None:
        owner = self._owner_of(call.keys[0])
        assert reply == sum(self._settles(owner, id, counts=True) for id in call.args)

    def _settles(self, owner: str, id: str, *, counts: bool) -> bool:
        """A job is acked; return False if it was not there."""
        payload, ran = self.end(owner, id)
        if payload is None:
            self.notable["an ack came too late"] += 1
            return False
        self.settled[payload] += 1
        card = self.cards[payload]
        if counts:
            self._clear(payload)
        elif ran:
            card.runs -= 1  # it ended well, and is none of the next copy's
        if not counts and card.counted and owner in self.reaped:
            card.left = True
        return True

    def _requeue(self, call: Call, reply: Any) -> None:
        queue, probation = call.keys[1], call.keys[4]
        owner, missing = self._owner_of(call.keys[0]), []
        rows = zip(call.args[7::3], call.args[8::3], strict=True)
        for number, (id, record) in enumerate(rows, 1):
            if id in self.held[owner]:
                self.go_back(owner, id, self.held[owner][id])
            payload, ran = self.end(owner, id)
            if payload is None:
                self.notable["a requeue came too late"] += 1
                missing.append(number)
                continue
            card = self.cards[payload]
            name, is_rollback = call.args[0], call.args[1] == "rollback"
            self._requeue_copies(payload, name, (queue, probation), is_rollback=is_rollback)
            card.counted = True
            card.runs -= ran
            if record:
                card.stops += 1
                self.notable["a stop cut a run short"] += 1
        assert reply == missing

    def _requeue_copies(
        self,
        payload: bytes,
        name: str,
        lists: tuple[str, str],
        *,
        is_rollback: bool,
        count: int = 1,
    ) -> None:
        """Put copies of a job on its queue, the first of ``lists``, or a suspect on its probation
        list, the second. A rollback puts a suspect on its queue, too: it runs beside others until
        it is put on probation again."""
        card, (key, probation) = self.cards[payload], lists
        if card.probation and is_rollback:
            card.chances += count
        elif card.probation and count:
            key = probation
            self.on_probation.add(name)
        self.lists[key][payload] += count

    def _park(self, call: Call, reply: Any) -> None:
        """Jobs that cannot run now, or not again yet, wait for later."""
        owner, parked = self._owner_of(call.keys[0]), call.keys[1]
        is_retry, missing = bool(call.args[1]), []
        for number, id in enumerate(call.args[3::4], 1):
            payload = self.held[owner].get(id)
            if payload is not None and is_retry:
                self.go_back(owner, id, payload)
            payload, ran = self.end(owner, id)
            if payload is None:
                self.notable["a park came too late"] += 1
                missing.append(number)
                continue
            self.notable["a run ends in a park" if ran else "a job is parked"] += 1
            card = self.cards[payload]
            self.lists[parked][payload] += 1
            card.counted |= is_retry
            card.runs -= ran
        assert reply == missing

    def _release(self, call: Call, reply: Any) -> None:
        """All parked jobs move to their queues: the caller takes them all for due."""
        parked_of, queue_of, probation_of, _ = call.args[4:8]
        total = 0
        for key in [key for key in self.lists if key.startswith(parked_of)]:
            name = key.removeprefix(parked_of)
            for payload, count in self.lists[key].items():
                lists = queue_of + name, probation_of + name
                self._requeue_copies(
                    payload, name, lists, is_rollback=not probation_of, count=count
                )
            total += self.lists[key].total()
            self.lists[key].clear()
        assert reply[0] == total
        self.notable["a parked job returns"] += total

    def _recover(self, call: Call, reply: Any) -> None:
        queue, probation = call.keys[2], call.keys[5]
        marked, owner = bool(call.args[0]), call.args[4]
        counted: set[bytes] = set()
        for at, outcome in enumerate(reply):
            id, expected, strikes, blame, suspect, own, *_ = call.args[8 + 8 * at : 16 + 8 * at]
            assert own == (not marked)
            payload = self.held[owner].get(id)
            seen = -1 if payload in counted else expected
            if not self._holds(marked, owner, seen, payload, outcome):
                continue
            assert payload is not None
            counted.add(payload)
            card = self.cards[payload]
            self._judge(owner if marked else "", id, payload, blame, strikes)
            limit, struck = self.limit(payload), blame in ("exact", "suspect")
            assert bool(suspect) == bool(
                limit is not None
                and (
                    card.probation
                    or bool(strikes >= limit - 1 and struck and (marked or card.deaths))
                    or card.recoveries + 1 - card.stops - (blame == "stop")
                    >= self.config.recovery_limit
                )
            )
            if suspect:
                assert suspect == max(1, card.probation + (blame == "suspect"))
            card.strikes, card.recoveries = strikes, card.recoveries + 1
            card.stops += blame == "stop"
            card.deaths += struck and marked
            card.alongside += blame == "suspect"
            card.probation, card.counted = suspect, True
            self.go_back(owner, id, payload)
            self._ended(owner, id, payload, blame)
            self.lists[probation if suspect else queue][payload] += 1
            if suspect:
                self.on_probation.add(call.args[3])
            self.notable[f"recovered, blame: {blame or 'none'}"] += 1
            assert limit is None or card.strikes < limit, "the last strike kills"

    def _kill(self, call: Call, reply: Any) -> None:
        id, marked, seen, _, text = call.args[:5]
        owner, record = self._owner_of(call.keys[9]), json.loads(text)
        payload = self.held[owner].get(id)
        whole = DeadJob.load("", text.encode(), 0).payload
        if not self._holds(bool(marked), owner, seen, payload, reply[0], whole):
            return
        assert payload is not None
        limit = self.limit(payload)
        assert limit == record["strikes"], "neither earlier nor later"
        assert record["history"][-1]["strike"] == "exact"
        self._judge(owner if marked else "", id, payload, "exact", record["strikes"])
        self.dead_steps[payload].append(self.steps[owner].get(id, ""))
        self._ended(owner, id, payload, "exact")
        self.dead[payload] += 1
        self._clear(payload)
        self.notable["killed"] += 1

    def _holds(
        self,
        marked: bool,
        owner: str,
        seen: int,
        payload: bytes | None,
        outcome: bytes,
        of: bytes | None = None,
    ) -> bool:
        """Whether a decision held; it is about a payload that is still held, or ``of`` one."""
        about = of if payload is None else payload
        recounted = about is not None and seen != self.cards[about].recoveries
        order = (b"recounted", b"moved") if of is not None else (b"moved", b"recounted")
        wrong = {b"recounted": recounted, b"moved": payload is None}
        expected = next((why for why in order if wrong[why]), b"ok")
        if marked and owner not in self.reaped:
            expected = b"unmarked"
        assert outcome == expected
        if expected != b"ok":
            self.notable[f"decision: {expected.decode()}"] += 1
        return expected == b"ok"

    def _judge(self, owner: str, id: str, payload: bytes, blame: str, strikes: int) -> None:
        """Is it as DESIGN has it, and as it really was? Without an owner: its child was lost."""
        card, limit = self.cards[payload], self.limit(payload)
        expected = self.blame(owner, id, payload) if owner else "exact"
        # Of copies that one death met, one has its strike; another as well, where a second pass
        # has to go on with what the first has left.
        spared = not blame and (owner, payload) in self.struck
        assert spared or blame == expected
        if owner and blame:
            self.struck.add((owner, payload))
        most = limit - 1 if blame == "suspect" and limit is not None else card.strikes + 1
        struck = blame in ("exact", "suspect")
        assert strikes == (
            max(card.strikes, min(card.strikes + 1, most)) if struck else card.strikes
        )
        card.blamed += struck
        # Losses of its own pool processes alone put it on no probation. So it may meet others at
        # its last strike but one, and a death beside others is never the last strike.
        if blame == "suspect" and strikes == card.strikes and most > 0:
            card.chances += 1
        if blame == "exact":
            assert self.culprits.get(owner, payload) == payload, "another job has done it"
            if payload not in self.killers:
                self.unlucky.add(payload)

    def _ended(self, owner: str, id: str, payload: bytes, blame: str) -> None:
        """A claim is over, otherwise than by its owner's will."""
        _, ran = self.end(owner, id)
        if ran and blame in ("", "stop"):
            self.cards[payload].runs -= 1
            self.cards[payload].deployed += 1

    def _retry(self, call: Call, reply: Any) -> None:
        payload = call.args[1]
        assert reply == 1
        assert self.dead[payload]
        self.dead[payload] -= 1
        self.lists[call.keys[6]][payload] += 1
        self._clear(payload)
        steps = call.args[3]
        self.dead_steps[payload].remove(steps)
        self.cards[payload].steps, self.cards[payload].counted = steps, bool(steps)
        self.cards[payload].left = bool(steps)


def with_step(steps: str, name: str) -> str:
    """A steps note with one step more: the first part that it continues has it, or a new one."""
    family, _, number = name.partition(":")
    for part in PUBLISHED.finditer(steps):
        if part[1] == family and int(part[3]) + 1 == int(number):
            grown = f"{family}:{part[2]}-{number};"
            return steps[: part.start()] + grown + steps[part.end() :]
    return f"{steps}{family}:{number}-{number};"
