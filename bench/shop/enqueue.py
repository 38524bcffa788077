"""
python -m bench.shop.enqueue ours|theirs CALLS: microseconds of a `delay()` inside a transaction, as JSON: `together`, a
value for each transaction of a hundred calls, their mean; and `alone`, a value for each transaction of a single call.

The time includes everything: building the messages, the INSERTs, the commit, and work that is deferred to the commit.
`together` shares the commit among a hundred calls. `alone` includes a whole transaction with a SELECT before the call.
The first call has a task id that the other benchmarks know, so that they can multiply its row.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.shop.settings")

CALLS_PER_TRANSACTION = 100
WARM_UP_TRANSACTIONS = 1
TEMPLATE_ID = "be9c0000-0000-4000-8000-000000000000"


def main() -> None:
    import django
    from django.db import connection, transaction

    from bench.shop.task import ARGUMENTS

    whose, calls = sys.argv[1], int(sys.argv[2])
    django.setup()
    task = import_module(f"bench.shop.{whose}").send_invoice
    with transaction.atomic():
        task.apply_async(kwargs=ARGUMENTS, task_id=TEMPLATE_ID)
    together: list[float] = []
    alone: list[float] = []
    for _ in range(WARM_UP_TRANSACTIONS + calls // CALLS_PER_TRANSACTION if calls else 0):
        started = time.perf_counter()
        with transaction.atomic():
            for _ in range(CALLS_PER_TRANSACTION):
                task.delay(**ARGUMENTS)
        together.append((time.perf_counter() - started) / CALLS_PER_TRANSACTION * 1e6)
    for _ in range(calls // CALLS_PER_TRANSACTION):
        started = time.perf_counter()
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            task.delay(**ARGUMENTS)
        alone.append((time.perf_counter() - started) * 1e6)
    print(json.dumps({"together": together[WARM_UP_TRANSACTIONS:], "alone": alone}))


if __name__ == "__main__":
    main()
