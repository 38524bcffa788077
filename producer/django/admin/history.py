"""Archived messages and the events of streams."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import quote as quote_pk
from django.urls import reverse

from outrider.producer.django.admin.filters import TypeFilter
from outrider.producer.django.admin.read_only import Listing, ReadOnlyAdmin


class ArchivedMessageAdmin(ReadOnlyAdmin):
    ordering = ("-delivered_at", "-id")
    list_display = ("id", "event_type", "ordering_key", "exchange", "routing_key", "attempts", "delivered_at")
    list_filter = (TypeFilter,)
    fields = (
        "id", "event_id", "event_type", "ordering_key", "exchange", "routing_key", "created_at", "attempts",
        "delivered_at", "seen_payload",
    )  # fmt: skip


class EventListing(Listing):
    def url_for_result(self, result: Any) -> str:
        place = quote_pk(f"{result.version} {result.stream}")
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[place])


class StoredEventAdmin(ReadOnlyAdmin):
    """Links contain version and stream, the key of the table; event_id, the model's key, has no index."""

    ordering = ("-created_at",)
    list_display = ("stream", "version", "event_type", "event_id", "created_at")
    list_filter = (TypeFilter,)
    fields = ("stream", "version", "event_id", "event_type", "created_at", "seen_payload")
    search_help_text = "A complete event id, stream or event type"
    searched_text = ("stream", "event_type")

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        return EventListing

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        version, _, stream = object_id.partition(" ")
        if not version.isdecimal() or not stream:
            return super().get_object(request, object_id, from_field)
        return self.get_queryset(request).filter(stream=stream, version=min(int(version), 2**63 - 1)).first()
