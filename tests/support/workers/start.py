"""The command `celery`, ready in two thirds of its time: tests start it some hundred times.

What no worker needs is left out: click_repl, a shell for `celery amqp` (a third of all imports),
the commands of flower, and YAML. Nor is there garbage to look for while it imports. What the pages
say is done with the installed command.
"""

import faulthandler
import gc
import sys
from types import SimpleNamespace

from celery import maybe_patch_concurrency

NO_SHELL = SimpleNamespace(register_repl=lambda group: None)

if __name__ == "__main__":
    maybe_patch_concurrency()  # before anything else is imported, as `celery` does
    sys.modules.update(click_repl=NO_SHELL, flower=None, yaml=None)
    gc.disable()
    import celery.apps.worker  # noqa: F401
    import redis  # noqa: F401
    from celery.bin.celery import main

    gc.enable()
    faulthandler.register(40)  # `Process.dump_stacks` asks for it when a test has failed
    sys.exit(main())
