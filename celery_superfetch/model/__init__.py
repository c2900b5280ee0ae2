"""Values and rules: options, jobs, processes, strikes, verdicts.

Never connects to Redis, and does not import Celery: it may only read its own host (clock,
processes). Every other package imports it. A *strike* is the loss of a run that may be its job's
own fault; a *verdict* says whether an owner, the part of a worker that claims jobs, is dead.
"""
