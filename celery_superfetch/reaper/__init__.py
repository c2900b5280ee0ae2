"""The reaper: it decides which owners (processes that claim jobs) died, and recovers their jobs.

Workers, beat's reap task and commands run it; they begin with ``reaper.py``. Such a process need
not be an owner itself. ``owner/in_flight/settlement.py`` uses ``recovery`` for jobs of a live
owner. Until a job is moved, it is in the dead owner's private list in Redis, so if the reaping
process dies, the next pass of any reaper continues. This package never claims jobs, and never
imports Celery.
"""
