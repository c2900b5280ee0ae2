"""Migration: jobs that stock kombu left unacked are taken over, and all jobs go back to stock.

Runs in a command's process; it never registers as an owner, and knows neither kombu nor Celery.
"""
