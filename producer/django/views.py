"""
Views of outrider.producer.django.urls. They read a bounded part of the tables, and return no payload.

A user needs the permission OUTRIDER["HEALTH_PERMISSION"]: without a login the answer is 401, without permission 403. If
it is None, any client may read: then protect the path elsewhere. Only GET and HEAD.

workers     {"healthy", "missing": [kinds], "workers": [{kind, name, role, host, pid, version, started_at,
            last_seen_at, silent_seconds, stale}]}. A relay (if OUTRIDER has a SLOT) and a scheduler are needed; a
            service that was not seen for STALE_SECONDS does not count
queues      {"healthy", "pending", "due", "with_relay", "claimed", "delayed", "retrying", "parked", "blocked_keys",
            "oldest_seconds", "overdue_seconds", "dead", "dead_by_reason"}: as in outrider.operations.outbox_state.
            Healthy while no message has been due for longer than ?overdue=SECONDS (300)
statistics  {"pending": [{event_type, pending, retrying, oldest_seconds}], "dead": [{event_type, messages, reason,
            error, last_died_at}]}: the ?top=N (20) most frequent types, and failures of the newest dead letters

A database that cannot be reached is an answer with the status 503 and the error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from outrider.errors import OutboxError
from outrider.operations.dead_letters import DeadLetterSelection, group_by_failure
from outrider.producer.django.conf import get_settings
from outrider.producer.django.models import DeadLetter
from outrider.producer.django.store import DjangoStore, django_errors
from outrider.storage.service_queries import STALE_SECONDS

MOST = 10_000
"""Counts look at no more rows."""

MOST_WORKERS = 200
OVERDUE_SECONDS = 300.0
TOP = 20

Answer = tuple[dict[str, Any], bool]
"""The document, and whether it is a healthy one."""


def _view(read: Callable[[HttpRequest], Answer]) -> Callable[[HttpRequest], JsonResponse]:
    @never_cache
    @require_safe
    @wraps(read)
    def view(request: HttpRequest) -> JsonResponse:
        permission = get_settings().health_permission
        user: Any = getattr(request, "user", None)
        try:
            with django_errors():
                if permission is not None and not (user is not None and user.has_perm(permission)):
                    status = 403 if user is not None and user.is_authenticated else 401
                    return JsonResponse({"error": f"needs the permission {permission}"}, status=status)
            document, healthy = read(request)
        except ValueError as error:
            return JsonResponse({"error": str(error)}, status=400)
        except OutboxError as error:
            return JsonResponse({"error": str(error)}, status=503)
        return JsonResponse(document, status=200 if healthy else 503)

    return view


@_view
def workers(request: HttpRequest) -> Answer:  # noqa: ARG001
    settings = get_settings()
    rows = DjangoStore().state("state_workers", most=MOST_WORKERS)
    found = [{**row, "stale": row["silent_seconds"] > STALE_SECONDS} for row in rows]
    needed = ["scheduler"] if settings.slot is None or settings.publication is None else ["relay", "scheduler"]
    alive = {each["kind"] for each in found if not each["stale"]}
    missing = [kind for kind in needed if kind not in alive]
    return {"healthy": not missing, "missing": missing, "workers": found}, not missing


@_view
def queues(request: HttpRequest) -> Answer:
    limit = _number(request, "overdue", OVERDUE_SECONDS)
    store = DjangoStore()
    [counts] = store.state("state_queues", most=MOST)
    [dead] = store.state("state_dead", most=MOST)
    reasons = dead["by_reason"]
    by_reason = json.loads(reasons) if isinstance(reasons, str) else reasons
    healthy = (counts["overdue_seconds"] or 0) <= limit
    return {"healthy": healthy, **counts, "dead": dead["total"], "dead_by_reason": by_reason}, healthy


@_view
def statistics(request: HttpRequest) -> Answer:
    top = round(_number(request, "top", TOP))
    store = DjangoStore()
    with django_errors():
        newest = list(DeadLetter.objects.order_by("-died_at").values_list("pk", flat=True)[:MOST])
    groups = group_by_failure(store, DeadLetterSelection(ids=newest))
    names = ("event_type", "messages", "reason", "error", "last_died_at")
    return {
        "pending": [each._asdict() for each in store.pending_types(most=MOST, at_most=min(top, MOST))],
        "dead": [{name: getattr(each, name) for name in names} for each in groups[:top]],
    }, True


def _number(request: HttpRequest, name: str, default: float) -> float:
    text = request.GET.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e9:
        raise ValueError(f"{name} must be a number, 0 or more")
    return number
