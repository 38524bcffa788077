"""
Django's settings, for both: the database, the broker and the queue come from the environment.
"""

from __future__ import annotations

import importlib.util
import os
from urllib.parse import urlsplit

_address = urlsplit(os.environ["BENCH_DATABASE_URL"])

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _address.path.lstrip("/"),
        "HOST": _address.hostname,
        "PORT": str(_address.port),
        "USER": _address.username,
        "CONN_MAX_AGE": None,
    }
}
INSTALLED_APPS = ["django_celery_outbox"] if importlib.util.find_spec("django_celery_outbox") else []
CELERY_OUTBOX_APP = "bench.shop.theirs.app"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "bench"
USE_TZ = True
LOGGING = {"version": 1, "root": {"level": "WARNING"}}
