"""Web: a page that shows the overview, and retries or deletes dead jobs where it may.

Only its command and users import it. It keeps nothing, and never shows a payload as it is.
"""

from .page import create_app

__all__ = ["create_app"]
