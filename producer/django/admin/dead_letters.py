"""Dead letters: grouped by failure, filtered, replayed and discarded; the actions ask for confirmation."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.template.response import TemplateResponse
from django.urls import path

from outrider.operations import dead_letters
from outrider.operations.dead_letters import DeadLetterSelection
from outrider.producer.django.admin.confirmation import ask, confirmed
from outrider.producer.django.admin.filters import AgeFilter, FailureFilter, ReasonFilter, TypeFilter
from outrider.producer.django.admin.read_only import MOST, ReadOnlyAdmin
from outrider.producer.django.store import DjangoStore
from outrider.telemetry.printable import printable

MOST_GROUPS = 100


class DeadLetterAdmin(ReadOnlyAdmin):
    ordering = ("-died_at", "-id")
    list_display = ("id", "event_type", "reason", "attempts", "died_at", "short_error")
    list_filter = (ReasonFilter, AgeFilter, TypeFilter, FailureFilter)
    fields = (
        "id", "event_id", "task_id", "event_type", "ordering_key", "exchange", "routing_key", "dedup_key", "created_at",
        "expires_at", "died_at", "reason", "attempts", "last_failed_at", "last_error", "seen_payload",
    )  # fmt: skip
    actions = ("replay", "discard")
    change_list_template = "admin/outrider/dead_letters.html"

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.failures_view)
        return [path("failures/", view, name="outrider_deadletter_failures"), *super().get_urls()]

    def has_replay_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("outrider.replay_deadletter"))

    def has_discard_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("outrider.discard_deadletter"))

    @admin.action(description="Replay selected dead letters", permissions=["replay"])
    def replay(self, request: Any, queryset: Any) -> Any:
        ids = confirmed(request, queryset)
        if ids is None:
            return ask(self, request, queryset, action="replay", consequence="They go back into the outbox.")
        done = dead_letters.replay(DjangoStore(), DeadLetterSelection(ids=ids))
        self._report(request, f"Dead letters replayed: {done.replayed}.")
        if done.kept:
            first = "; ".join(f"{each.id} (dedup_key {each.dedup_key}): {each.why}" for each in done.skipped)
            self.message_user(request, printable(f"Dead letters kept: {done.kept}. {first}"), messages.WARNING)
        return None

    @admin.action(description="Discard selected dead letters", permissions=["discard"])
    def discard(self, request: Any, queryset: Any) -> Any:
        ids = confirmed(request, queryset)
        if ids is None:
            return ask(self, request, queryset, action="discard", consequence="They are deleted for good.")
        self._report(
            request, f"Dead letters discarded: {dead_letters.discard(DjangoStore(), DeadLetterSelection(ids=ids))}."
        )
        return None

    def failures_view(self, request: Any) -> TemplateResponse:
        """The failures of the newest MOST dead letters, the most frequent first."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        newest = self.get_queryset(request).order_by("-died_at").values_list("pk", flat=True)[:MOST]
        groups = dead_letters.group_by_failure(DjangoStore(), DeadLetterSelection(ids=list(newest)))
        context = {
            **self.admin_site.each_context(request),
            "title": "Failures",
            "opts": self.opts,
            "groups": groups[:MOST_GROUPS],
            "left_out": len(groups) - MOST_GROUPS,
        }
        return TemplateResponse(request, "admin/outrider/failures.html", context)

    def _report(self, request: Any, text: str) -> None:
        self.message_user(request, text, messages.SUCCESS)
        logging.getLogger(__name__).info("%s: %s", request.user.get_username(), text)
