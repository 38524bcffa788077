"""
A page that asks for confirmation of an action, with the number of rows and the consequence.

If all rows of a filtered list were selected, rows that are added before the confirmation are not included.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import model_ngettext
from django.template.response import TemplateResponse

from outrider.producer.django.admin.read_only import MOST

SHOWN = 20


def ask(model_admin: Any, request: Any, queryset: Any, *, action: str, consequence: str) -> TemplateResponse:
    rows = queryset.order_by("-id")
    ids = list(rows.values_list("pk", flat=True)[:MOST])
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"{action.capitalize()} {len(ids)} {model_ngettext(model_admin.opts, len(ids))}?",
        "opts": model_admin.opts,
        "action": action,
        "consequence": consequence,
        "shown": rows[:SHOWN],
        "left_out": len(ids) - SHOWN,
        "across": request.POST.get("select_across") == "1",
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "checkbox": ACTION_CHECKBOX_NAME,
        "up_to": ids[0] if ids else 0,
    }
    return TemplateResponse(request, "admin/outrider/confirm.html", context)


def confirmed(request: Any, queryset: Any) -> list[int] | None:
    """The ids of the confirmed rows; None before the confirmation."""
    up_to = request.POST.get("confirmed_up_to", "")
    if not up_to.isdecimal():
        return None
    return list(queryset.order_by("-id").filter(pk__lte=int(up_to)).values_list("pk", flat=True)[:MOST])
