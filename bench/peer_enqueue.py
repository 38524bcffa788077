"""
enqueue_vs_django_celery_outbox: microseconds of a captured `delay()` in a Django transaction, INSERT included.

Both run the same shop in processes of their own, in turn, with the same versions of Django, Celery and psycopg. Whole
transactions of a hundred calls are timed, so that work deferred to the commit is included. Each call waits for its
INSERT. The time of a transaction with a single call is among the raw figures.
"""

from __future__ import annotations

from statistics import median

from bench.figures import Figures, ratio_of_medians, rounded
from bench.peer import Shop, peer_shop
from bench.scale import Scale
from bench.servers import BenchServers


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    medians: dict[str, dict[str, list[float]]] = {way: {"ours": [], "theirs": []} for way in ("together", "alone")}
    with servers.outbox() as database, peer_shop(servers, "bench_peer_enqueue") as (peer, _):
        shops = {"ours": Shop("ours", database.dsn, servers.rabbitmq.url), "theirs": peer}
        for _ in range(scale.rounds):
            for whose, shop in shops.items():
                for way, times in shop.enqueue(scale.enqueue_calls).items():
                    medians[way][whose].append(median(times))
    together, alone = medians["together"], medians["alone"]
    figures.put("enqueue_vs_django_celery_outbox", ratio_of_medians(together["ours"], together["theirs"]))
    figures.raw["enqueue"] = {
        "calls": scale.enqueue_calls,
        "microseconds": rounded(together["ours"]),
        "django_celery_outbox_microseconds": rounded(together["theirs"]),
        "transaction_of_one_call_microseconds": rounded(alone["ours"]),
        "django_celery_outbox_transaction_of_one_call_microseconds": rounded(alone["theirs"]),
    }
