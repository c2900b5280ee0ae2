"""Web: a page of what there is to see, which puts dead jobs back, or deletes them, where it may.

Only its command and users import it. It keeps nothing, and never shows a payload as it is.
"""

from .page import create_app

__all__ = ["create_app"]
