"""The parts of a Celery worker: bootsteps, gate, request class, pool adapters, maintenance threads.

Celery loads the two bootsteps of ``bootsteps.py`` by name (``app/installation.py`` registers them),
and they make the other parts. A claimed job is in its owner's private list in Redis until it is
settled, so if the worker dies, a reaper recovers it. Nothing imports this package, and only this
package imports Celery's worker and pools.
"""
