"""
The configuration, the task and its arguments, for both applications.
"""

from __future__ import annotations

import os
from typing import Any

ARGUMENTS = {"order": "000000000000", "customer": "c-20817", "currency": "EUR", "total": "149.90"}


def configure(app: Any) -> Any:
    """Confirmed publishes and no results, and the task of the shop."""
    app.conf.update(
        broker_url=os.environ["BENCH_BROKER_URL"],
        broker_transport_options={"confirm_publish": True},
        task_default_queue=os.environ["BENCH_QUEUE"],
        task_ignore_result=True,
    )

    @app.task(name="shop.send_invoice")  # type: ignore[untyped-decorator]
    def send_invoice(**arguments: str) -> None:
        """Never runs: only its message is measured."""

    return send_invoice
