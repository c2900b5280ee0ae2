"""Console: whether all is well, what to do about it, and the commands, metrics and page of it.

It reads the core by one class, ``Inspector``; the core never imports it, and works without it.
"""
