"""
The admin: what is pending, dead, archived and stored, to look at; dead letters to replay and discard.

Rows are read-only: what can be done to a message is an action with a permission of its own. Payloads are shown as the
redactor leaves them. Every page is bounded in what it reads, however long the tables are: counts stop at MOST, lists go
along an index, filters offer what the rows at hand hold.
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
