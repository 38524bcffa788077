"""A broker outage of a minute, with the default cooldown, while the application commits messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tests.fixtures.broker import Broker
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

OUTAGE_SECONDS = 60.0
STATES = "SELECT DISTINCT attempts, last_error FROM outbox"


def test_an_outage_of_a_minute_spends_no_attempt_and_loses_nothing(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    queue = rabbit.declare_queue()
    proxy = fault_proxy(*address_of(rabbit.url))
    relay = stage.start_relay(proxy.through(rabbit.url), archive=True)
    environment = stage.environment(proxy.through(rabbit.url), archive=True)
    schedulers = [
        stage.run_service("outrider.retry_scheduler", env={**environment, "OUTRIDER_NAME": name}) for name in "ab"
    ]
    for scheduler in schedulers:
        scheduler.wait_for_event("scheduler_active")
    committed = stage.insert(queue, 10)
    stage.wait_until_empty()

    proxy.refuse()
    proxy.cut()
    ends = time.monotonic() + OUTAGE_SECONDS

    def commit_until_the_end() -> bool:
        committed.extend(stage.insert(queue, 2) + stage.insert(queue, 1, ordering_key=f"k{len(committed) % 7}"))
        assert stage.connection.execute(STATES).fetchall() == [(0, None)]
        return time.monotonic() >= ends

    wait_for(commit_until_the_end, deadline_seconds=OUTAGE_SECONDS + 60)
    assert any(event.get("breaker") == "open" for scheduler in schedulers for event in scheduler.events())
    behind = stage.slot_state()["behind_bytes"]
    proxy.heal()

    stage.wait_until_empty(120)
    # The archive is on, so the attempts of every delivered row are known.
    delivered = {row["event_id"]: row["attempts"] for row in stage.rows("outbox_archive")}
    assert delivered == dict.fromkeys(committed, 0)
    assert stage.rows("outbox_dead_letter") == []
    assert behind < 16 * 1024 * 1024  # the slot retained no more WAL than this during the outage
    arrived = Counter(message.message_id for message in rabbit.take_what_is_there(queue))
    assert set(arrived) == set(committed)
    assert relay.is_running
