"""Celery apps that the tests run in worker processes of their own."""
