"""The jobs in flight of this process, from the claim of each to its ack or requeue.

``Owner`` makes an ``InFlight``; ``transport/`` and ``worker/`` report to it what happens to each
job. If the process dies, its jobs stay in its private list in Redis, and a peer's reaper recovers
them. One lock guards the states of the jobs. It is held over the round trips that report states or
claim jobs, and over rare other ones (a reconcile, the mark of a suspect), never by the heartbeats.
"""
