"""
python -m bench.shop.enqueue ours|theirs CALLS: microseconds of each `delay()` inside a transaction, as JSON.

What is timed is the call: building the message and the INSERT, not the commit. The first call carries a task id that
the other benchmarks know, so that its row can be multiplied.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.shop.settings")

CALLS_PER_TRANSACTION = 10
WARM_UP_CALLS = 50
TEMPLATE_ID = "be9c0000-0000-4000-8000-000000000000"


def main() -> None:
    import django
    from django.db import transaction

    from bench.shop.task import ARGUMENTS

    whose, calls = sys.argv[1], int(sys.argv[2])
    django.setup()
    task = import_module(f"bench.shop.{whose}").send_invoice
    with transaction.atomic():
        task.apply_async(kwargs=ARGUMENTS, task_id=TEMPLATE_ID)
    times: list[float] = []
    while len(times) < WARM_UP_CALLS + calls and calls:
        with transaction.atomic():
            for _ in range(CALLS_PER_TRANSACTION):
                started = time.perf_counter()
                task.delay(**ARGUMENTS)
                times.append((time.perf_counter() - started) * 1e6)
    print(json.dumps(times[WARM_UP_CALLS:]))


if __name__ == "__main__":
    main()
