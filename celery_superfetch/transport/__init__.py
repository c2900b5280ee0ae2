"""kombu's side: its transport, channels and event loop, with reliable fetch.

Works without Celery, and never imports it.
"""
