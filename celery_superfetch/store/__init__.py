"""The data in Redis: each class is one structure, with its keys and its scripts.

No other part of the package names a key, a command or a script. It decides nothing.
"""
