"""The shop as pytest-celery sees it: a setup of nodes, made of processes or of containers."""
