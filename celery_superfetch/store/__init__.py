"""The data in Redis: each class is one structure, with its keys and its scripts.

No other room names a key, a command or a script, but `migration` stock kombu's. It decides nothing.
"""
