"""Pending messages: a summary, the list, and an action that makes messages due now."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages

from outrider.operations.pending_messages import PendingSelection, retry_now
from outrider.producer.django.admin.filters import AttemptsFilter, OwnerFilter, TypeFilter
from outrider.producer.django.admin.read_only import MOST, ReadOnlyAdmin
from outrider.producer.django.store import DjangoStore

MOST_TYPES = 10


class OutboxMessageAdmin(ReadOnlyAdmin):
    ordering = ("id",)  # the oldest first
    list_display = ("id", "event_type", "ordering_key", "owner", "attempts", "next_attempt_at", "short_error")
    list_filter = (AttemptsFilter, OwnerFilter, TypeFilter)
    fields = (
        "id", "event_id", "task_id", "event_type", "ordering_key", "exchange", "routing_key", "dedup_key", "created_at",
        "expires_at", "owner", "claimed_by", "attempts", "next_attempt_at", "last_failed_at", "last_error",
        "schema_version", "seen_payload",
    )  # fmt: skip
    actions = ("retry",)
    change_list_template = "admin/outrider/messages.html"

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {**summary(), **(extra_context or {})})

    def has_retry_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("outrider.retry_outboxmessage"))

    @admin.action(description="Retry now, with attempts reset", permissions=["retry"])
    def retry(self, request: Any, queryset: Any) -> None:
        ids = list(queryset.values_list("pk", flat=True)[:MOST])
        retried = retry_now(DjangoStore(), PendingSelection(ids=ids), reset_attempts=True)
        self.message_user(request, f"Messages that are due now: {retried.due}.", messages.SUCCESS)
        left = {
            "held by a scheduler": retried.claimed,
            "behind an earlier message of their key": retried.behind,
            "busy at this moment": retried.busy,
        }
        if any(left.values()):
            reasons = ", ".join(f"{count} {why}" for why, count in left.items() if count)
            self.message_user(request, f"Left alone: {reasons}.", messages.WARNING)


def summary() -> dict[str, Any]:
    """The context of the summary above the list."""
    store = DjangoStore()
    sample = store.sample(most=MOST)
    return {
        "sample": sample,
        "at_least": sample.pending >= MOST,
        "types": store.pending_types(most=MOST, at_most=MOST_TYPES),
    }
