"""This process as an owner: registered before its first claim, heard until its last ack.

Decides on nobody else; knows neither kombu nor Celery.
"""
