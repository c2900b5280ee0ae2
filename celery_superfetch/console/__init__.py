"""Console: the verdict, the findings and their fixes, with their commands, metrics and page.

It reads the core by one class, ``Inspector``; the core never imports it, and works without it.
"""
