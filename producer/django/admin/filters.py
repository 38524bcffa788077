"""Filters of the lists. Their choices are fixed, or read from a bounded part of the table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.db.models.functions import Now

from outrider.operations.dead_letters import DeadLetterSelection, selected_ids
from outrider.producer.django.admin.read_only import MOST
from outrider.producer.django.store import DjangoStore
from outrider.storage.decision import DEAD_LETTER_REASONS

DAY = 24 * 60 * 60
AGES = {"hour": 60 * 60, "day": DAY, "week": 7 * DAY, "month": 30 * DAY}


class TypeFilter(admin.SimpleListFilter):
    """Offers the event types of the first rows of the list."""

    title = "event type"
    parameter_name = "type"
    looked_at = 1000

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        first = model_admin.get_queryset(request).order_by(*model_admin.ordering).values_list("event_type", flat=True)
        types = {*first[: self.looked_at], *filter(None, [self.value()])}
        return [(each, each) for each in sorted(types)]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        return queryset if self.value() is None else queryset.filter(event_type=self.value())


class AttemptsFilter(admin.SimpleListFilter):
    title = "attempts"
    parameter_name = "attempts"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("none", "No failed attempt"), ("some", "Retrying")]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        conditions = {"none": Q(attempts=0), "some": Q(attempts__gt=0)}
        return queryset.filter(conditions.get(self.value() or "", Q()))


class OwnerFilter(admin.SimpleListFilter):
    title = "owner"
    parameter_name = "owner"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("relay", "Relay"), ("scheduler", "Scheduler")]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        return queryset if self.value() is None else queryset.filter(owner=self.value())


class ReasonFilter(admin.SimpleListFilter):
    title = "reason"
    parameter_name = "reason"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(reason, reason.capitalize()) for reason in DEAD_LETTER_REASONS]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        return queryset if self.value() is None else queryset.filter(reason=self.value())


class AgeFilter(admin.SimpleListFilter):
    """The time since the message became a dead letter, by the database's clock."""

    title = "age"
    parameter_name = "age"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        younger = [(f"under-{name}", f"Less than a{'n' * (name == 'hour')} {name}") for name in AGES]
        return [*younger, ("over-week", "More than a week"), ("over-month", "More than a month")]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        side, _, name = (self.value() or "").partition("-")
        if name not in AGES or side not in ("under", "over"):
            return queryset
        limit = Now() - timedelta(seconds=AGES[name])
        return queryset.filter(died_at__gte=limit) if side == "under" else queryset.filter(died_at__lt=limit)


class FailureFilter(admin.SimpleListFilter):
    """One failure, linked from the page of failures; among the newest MOST. Offers no choices of its own."""

    title = "failure"
    parameter_name = "failure"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(self.value() or "", self.value() or "")] if self.value() else []

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        if not self.value():
            return queryset
        newest = queryset.order_by("-died_at").values_list("pk", flat=True)[:MOST]
        alike = selected_ids(DjangoStore(), DeadLetterSelection(ids=list(newest), fingerprint=self.value()))
        return queryset.filter(pk__in=[pk for batch in alike for pk in batch])
