"""The shop for a beat whose scheduler is another's; django-celery-beat's needs Django around it."""

from __future__ import annotations

import os

from support.apps.build import build_app

if "DJANGO_DB" in os.environ:
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_beat"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DJANGO_DB"]}
        },
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)

app = build_app(os.environ)
