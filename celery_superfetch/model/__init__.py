"""Values and pure rules: options, jobs, processes, strikes, verdicts.

Asks psutil and the clock of its host; never a server, and it knows nothing of Celery.
"""
