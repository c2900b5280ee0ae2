"""Commands of ``celery superfetch`` that a worker's host need not have, each an entry point.

``celery`` itself never imports them: the group of ``cli`` loads the one that is called.
"""
