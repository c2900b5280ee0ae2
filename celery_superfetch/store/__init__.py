"""The data in Redis: each class is one structure, with its keys and its scripts.

Only here is a key, a command or a script named. It decides nothing and knows nothing of Celery.
"""
