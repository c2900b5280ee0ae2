"""This process as an owner of jobs: its registration in Redis, its heartbeats, its jobs in flight.

``transport/`` makes the owners and claims by them; ``worker/`` and ``app/`` use them. If the
process dies, its record and its jobs stay in Redis, and the reaper of a peer recovers the jobs.
This package never declares another owner dead (only ``reaper/`` does), and never imports kombu or
Celery.
"""
