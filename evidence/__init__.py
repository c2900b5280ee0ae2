"""Evidence that a sceptic can repeat: `python -m evidence` in a checkout.

Nothing here imports celery_superfetch, but the apps whose workers are to survive. The servers and
the processes are started by the same helpers as the tests' own.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if str(ROOT / "tests") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests"))
