"""`manage.py outbox_retry_scheduler`: retry-scheduler in Django's process, with Django's settings and signals."""

from __future__ import annotations

from outrider.producer.django.service_command import ServiceCommand


class Command(ServiceCommand):
    help = (
        "Deliver the messages that the relay did not, until SIGTERM or SIGINT: then finish what is in flight and exit "
        "with 0. Any number of processes can run."
    )
    command_line = "retry-scheduler"
