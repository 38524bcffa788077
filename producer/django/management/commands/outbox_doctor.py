"""`manage.py outbox_doctor`: `outrider doctor` with Django's settings."""

from __future__ import annotations

from outrider.producer.django.click_command import ClickCommand


class Command(ClickCommand):
    help = "Examine the outbox: database, replication, tables, roles, services, broker; a line for each check."
    command_line = "outrider doctor"
