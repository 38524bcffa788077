"""`manage.py outbox_doctor`: `outbox doctor` with Django's settings."""

from __future__ import annotations

from producer.django.plain_command import PlainCommand


class Command(PlainCommand):
    help = "Examine the outbox: database, replication, tables, roles, services, broker; a line for each check."
    plain = "outbox doctor"
