"""
The admin: lists of pending messages, dead letters, archived messages and stored events; actions on the first two.

Rows are read-only; each action has a permission of its own. Payloads are shown redacted. Every page reads a bounded
number of rows: counts stop at MOST, lists are ordered by an index, filters offer values of the first rows.
"""

from __future__ import annotations

from django.contrib import admin

from outrider.producer.django.admin.dead_letters import DeadLetterAdmin
from outrider.producer.django.admin.history import ArchivedMessageAdmin, StoredEventAdmin
from outrider.producer.django.admin.messages import OutboxMessageAdmin
from outrider.producer.django.models import ArchivedMessage, DeadLetter, OutboxMessage, StoredEvent

admin.site.register(OutboxMessage, OutboxMessageAdmin)
admin.site.register(DeadLetter, DeadLetterAdmin)
admin.site.register(ArchivedMessage, ArchivedMessageAdmin)
admin.site.register(StoredEvent, StoredEventAdmin)
