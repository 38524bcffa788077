"""
Services are killed at random while orders are committed; in the end everything that was committed has arrived.

Driven by a seed that is printed: SEED=... repeats the choices, DURATION=... (seconds) makes it longer.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict

from outbox.embedded import RabbitMQ
from tests.fixtures.broker import Broker
from tests.fixtures.services import Service
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

DURATION_SECONDS = float(os.environ.get("DURATION", "20"))
KEYS = 8
WRITERS = 2


class Writers:
    """Threads that commit messages in order per key, and roll some back. Each key has one writer."""

    def __init__(self, stage: Stage, queue: str, seed: int) -> None:
        self.committed: dict[str, list[int]] = defaultdict(list)
        self._stage, self._queue, self._seed = stage, queue, seed
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _write(self, writer: int) -> None:
        choice = random.Random(self._seed + writer)
        keys = [f"key-{number}" for number in range(KEYS) if number % WRITERS == writer]
        with self._stage.database.connect(autocommit=False) as connection:
            number = 0
            while not self._stop.wait(0.01):
                number += 1
                key = choice.choice(keys)
                headers = {"key": key, "number": number}
                self._stage.insert_with(connection, self._queue, ordering_key=key, headers=headers)
                if choice.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    self.committed[key].append(number)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_nothing_is_lost_or_out_of_order_while_services_and_the_broker_die(
    stage: Stage, disposable_rabbitmq: RabbitMQ
) -> None:
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"SEED={seed} DURATION={DURATION_SECONDS:g}")
    nemesis = random.Random(seed)
    broker = Broker(disposable_rabbitmq.url)
    queue = broker.declare_queue()
    times = {
        "hold_seconds": 0.5,
        "send_timeout_seconds": 3,
        "lease_seconds": 5,
        "poll_seconds": 0.2,
        "broker_outage_cooldown_seconds": 1,
    }
    environment = stage.environment(broker.url, **times)

    def start(kind: str) -> Service:
        return stage.run_service(kind, env=environment)

    services = [start(kind) for kind in ("cdc_relay", "cdc_relay", "retry_scheduler", "retry_scheduler")]
    wait_for(lambda: any("broker_connected" in relay.output() for relay in services[:2]), deadline_seconds=30)
    writers = Writers(stage, queue, seed)
    faults: Counter[str] = Counter()
    end = time.monotonic() + DURATION_SECONDS
    while time.monotonic() < end:
        fault = nemesis.choice(("kill", "kill", "term", "stop", "broker"))
        faults[fault] += 1
        if fault == "broker":
            disposable_rabbitmq.kill()
            disposable_rabbitmq.start()
        else:
            position = nemesis.randrange(len(services))
            victim = services[position]
            if fault == "stop":
                victim.signal(signal.SIGSTOP)
                threading.Event().wait(nemesis.uniform(0.5, 2))
                victim.signal(signal.SIGCONT)
            elif victim.is_running:
                victim.kill() if fault == "kill" else victim.stop()
        for position, service in enumerate(services):
            if not service.is_running:  # as a supervisor would
                services[position] = start(service.name)
        threading.Event().wait(nemesis.uniform(0.2, 1.5))
    writers.stop()

    # The first delivery of each message must be in order; later ones may repeat.
    wait_for(lambda: stage.count() == 0, deadline_seconds=90, message=f"rows are left: {stage.rows()[:5]}")
    arrived: dict[str, list[int]] = defaultdict(list)
    duplicates = 0
    for message in broker.take_what_is_there(queue):
        key, number = message.headers["key"], message.headers["number"]
        if number in arrived[key]:
            duplicates += 1
        else:
            arrived[key].append(number)
    total = sum(map(len, writers.committed.values()))
    print(f"faults {dict(faults)}, committed {total}, duplicates {duplicates}")
    assert {key: sorted(numbers) for key, numbers in arrived.items()} == dict(writers.committed)
    assert dict(arrived) == dict(writers.committed)
    assert stage.rows("outbox_dead_letter") == []
    stage.wait_until_confirmed()
