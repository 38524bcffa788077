"""
Health and statistics as JSON, for monitoring and dashboards:

    path("outbox/", include("outrider.producer.django.urls"))

    outbox/health/workers    the running services; 503 if one that is needed does not run
    outbox/health/queues     the numbers of messages by state; 503 if due messages wait for too long
    outbox/statistics        pending and dead messages by type (events and tasks)

outrider.producer.django.views says what each returns and who may read it.
"""

from __future__ import annotations

from django.urls import path

from outrider.producer.django.views import queues, statistics, workers

app_name = "outrider"

urlpatterns = [
    path("health/workers", workers, name="health-workers"),
    path("health/queues", queues, name="health-queues"),
    path("statistics", statistics, name="statistics"),
]
