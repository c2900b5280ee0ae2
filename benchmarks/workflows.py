"""Links of chains and parts of chords that a Celery worker runs per second, and their cost.

    python benchmarks/workflows.py [--rounds 3] [--only prefork] [--jobs 2000] [--before CHECKOUT]
        [--json]

celery_superfetch is compared with stock, and with another checkout of itself (``--before``).
Figures come about as in ``worker.py``. Each link publishes the next one, to a queue without a
consumer. Ten parts make a chord, whose body runs at the same worker; results are on the server of
the jobs. Jobs per second are those by which the number of queued and running jobs falls: the body
of a chord is added and removed, and does not count. celery-redis-plus is not measured, since its
queues cannot be filled with copies of a link.

Distorted by: other processes on the machine (rates, and to a lesser extent CPU). Takes: four
minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from celery import chord
from compare import PLUS, TRANSPORTS, arguments, begin, finish, measure_all, skipped_here
from noop import build
from worker import POOLS, Drain, copies, installed, tables

#: The queue of the next links, without a consumer.
NEXT = "next"
#: Parts of a chord.
PARTS = 10
#: Celery's multiplier.
PREFETCH = 4


class Chains(Drain):
    title = "the first links of chains"

    def fill(self, url: str) -> None:
        app = build(self.contender, url)
        noop = app.tasks["bench.noop"].si()
        last = (noop | noop.clone().set(queue=NEXT)).apply_async()
        app.close()
        copies(self.client, self.contender, last.parent.id, self.jobs)


class Chords(Drain):
    title = "the parts of chords"
    env: Mapping[str, str] = {"RESULTS": "1"}

    def fill(self, url: str) -> None:
        app = build(self.contender, url, results=True)
        # No result is awaited; Celery would ask for it at a server that is gone by then.
        app.backend.on_task_call = app.backend.remove_pending_result = lambda *_: None
        noop = app.tasks["bench.noop"].si()
        for _ in range(self.jobs // PARTS):
            chord([noop] * PARTS, app=app)(noop)
        app.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--jobs", type=int, default=2000, help="of each run")
    args = parser.parse_args(argv)
    skipped = skipped_here()
    # The next links are copied as lists of payloads, which that does not have.
    names = [name for name in TRANSPORTS if name not in skipped and name != PLUS]
    every = []
    for workflow in (Chains, Chords):
        found = tables(skipped, workflow.title)
        every += found
        begin(found[0])
        for pool, size in POOLS.items():
            case = f"{workflow.__name__.lower()}, {pool} -c {size}, prefetch {PREFETCH}"
            if args.only in case and (pool != "gevent" or installed("gevent")):
                runs = {name: workflow(name, pool, PREFETCH, args.jobs).run for name in names}
                measure_all(found, case, args.rounds, runs)
        for table in found[1:]:
            table.show()
    finish(args, every)


if __name__ == "__main__":
    main()
