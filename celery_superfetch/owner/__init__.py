"""This process as an owner of jobs: its registration, its heartbeats, and its jobs in flight.

Never declares another owner dead, as reapers do; never imports kombu or Celery.
"""
