"""What a Celery worker gets: the only room that touches Celery's worker and its pools.

Nothing imports it; Celery loads its bootsteps by name.
"""
