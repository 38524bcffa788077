"""The admin: what is pending, dead, archived and stored, to look at. Payloads are shown as the redactor leaves them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from producer.django.models import ArchivedMessage, DeadLetter, OutboxMessage

SHOWN = ("id", "event_id", "event_type", "ordering_key", "exchange", "routing_key", "created_at", "attempts")


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_filter = ("event_type",)
    search_fields = ("event_id", "event_type", "ordering_key")
    own_fields: tuple[str, ...] = ()

    def get_list_display(self, request: Any) -> Any:  # noqa: ARG002
        return ("id", "event_type", "event_id", "created_at", *self.own_fields)

    def get_fields(self, request: Any, obj: Any = None) -> Any:  # noqa: ARG002
        return (*SHOWN, *self.own_fields, "shown_payload")

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        return self.get_fields(request, obj)

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    own_fields = ("owner", "next_attempt_at", "last_error")


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    own_fields = ("reason", "last_error", "died_at")


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(ReadOnlyAdmin):
    own_fields = ("delivered_at",)
