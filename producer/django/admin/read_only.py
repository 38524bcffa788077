"""ReadOnlyAdmin: bounded lists of a table that may have many and large rows."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Q
from django.utils.functional import cached_property

from outrider.producer.django.conf import get_settings
from outrider.storage.task_id import event_id_of_task

MOST = 10_000
"""The largest number of rows that a list, a count or an action includes."""

WIDE = ("payload", "headers", "properties", "declarations", "context")


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts at most MOST rows."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows[:MOST].count())


class Listing(ChangeList):
    """Does not load the large columns."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> Any:
        queryset = super().get_queryset(*args, **kwargs)
        columns = {field.attname for field in self.model._meta.concrete_fields}
        return queryset.defer(*columns.intersection(WIDE))


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    paginator = BoundedPaginator
    list_per_page = 50
    show_full_result_count = False
    sortable_by = ()  # without an index, sorting would read the whole table
    if hasattr(admin, "ShowFacets"):  # Django 5.0
        show_facets = admin.ShowFacets.NEVER
    search_fields = ("event_id",)  # shows the search box; get_search_results does the search
    search_help_text = "An id, or a complete event id, task id, event type or ordering key"
    searched_text: tuple[str, ...] = ("event_type", "ordering_key")

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using(get_settings().database)

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        return Listing

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        if not search_term:
            return queryset, False
        if search_term.isdecimal() and self.opts.pk.attname == "id":
            return queryset.filter(pk=min(int(search_term), 2**63 - 1)), False
        found = [Q(event_id=event_id_of_task(search_term)), *(Q(**{name: search_term}) for name in self.searched_text)]
        return queryset.filter(reduce(or_, found)), False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        return self.get_fields(request, obj)

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    @admin.display(description="payload")
    def seen_payload(self, message: Any) -> str:
        return str(message.shown_payload)

    @admin.display(description="last error")
    def short_error(self, message: Any) -> str:
        error = message.last_error or ""
        return error if len(error) <= 80 else error[:79] + "…"
