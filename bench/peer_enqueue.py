"""
enqueue_vs_django_celery_outbox: microseconds of a captured `delay()` in a Django transaction, INSERT included.

Both run the same shop in processes of their own, in turn, with the same versions of Django, Celery and psycopg. Whole
transactions of a hundred calls are timed, so that nothing a call puts off until the commit is left out.
"""

from __future__ import annotations

from statistics import median

from bench.figures import Figures, ratio_of_medians, rounded
from bench.peer import Shop, peer_shop
from bench.scale import Scale
from bench.stage import Stage


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    with stage.outbox() as database, peer_shop(stage, "bench_peer_enqueue") as (peer, _):
        shop = Shop("ours", database.dsn, stage.rabbitmq.url)
        for _ in range(scale.rounds):
            ours.append(median(shop.enqueue(scale.enqueue_calls)))
            theirs.append(median(peer.enqueue(scale.enqueue_calls)))
    figures.put("enqueue_vs_django_celery_outbox", ratio_of_medians(ours, theirs))
    figures.raw["enqueue"] = {
        "calls": scale.enqueue_calls,
        "microseconds": rounded(ours),
        "django_celery_outbox_microseconds": rounded(theirs),
    }
