"""A new user with plain psycopg, from the wheel: README.md, the first commands, docs/producer.md's event stream."""

from __future__ import annotations

import json
import re

from tests.fixtures.documentation import documented, documented_files
from tests.fixtures.wheel import Adopter, stop, wait_for_output

SERVICES_UNTIL = {"cdc-relay": "broker_connected", "retry-scheduler": "scheduler_active", "outrider": "worker_active"}


def commands_of_the_readme() -> list[str]:
    """The commands of "Running it", without those that install and export."""
    printed = documented("README.md", "$ pip install '.[consumer]'", "console")
    lines = [line.removeprefix("$ ").partition("#")[0].strip() for line in printed.splitlines()]
    return [line for line in lines if not line.startswith(("pip ", "export "))]


def test_the_readme_from_its_first_command_to_a_received_order(newcomer: Adopter) -> None:
    newcomer.write(documented_files("README.md", "shop.py", "billing.py"))
    running = []
    for command in commands_of_the_readme():
        words = command.removesuffix("&").split()
        if command.endswith("&"):
            running.append(newcomer.start(*words, until=SERVICES_UNTIL[words[0]]))
        else:
            newcomer.run(*words)
    wait_for_output(running[-1], "{'order': 42}")
    assert re.search(r"received [0-9a-f-]{36} \{'order': 42\}", running[-1].log_file.read_text())

    examined = newcomer.run("outrider", "doctor").splitlines()
    assert [line for line in examined[:-1] if not line.startswith("ok ")] == []
    state = json.loads(newcomer.run("outrider", "status", "--json"))
    assert (state["queues"]["pending"], state["dead"]["total"]) == (0, 0)
    stop(*running)


def test_a_fresh_setup_leaves_the_doctor_one_warning_start_the_relay(newcomer: Adopter) -> None:
    helped = newcomer.run("outrider")
    assert newcomer.run("outrider", "-h") == helped
    assert "..." not in helped.partition("Commands:")[2]
    assert "created" in newcomer.run("outrider", "setup")
    examined = newcomer.run("outrider", "doctor").splitlines()
    [unfinished] = [line for line in examined[:-1] if not line.startswith("ok ")]
    assert unfinished.startswith("warning  relay: no relay reads slot outbox")
    assert "start cdc-relay" in unfinished
    assert "slot         │ outbox: no relay is reading it" in newcomer.run("outrider", "status")


EVENT_STREAM = """
import os

import psycopg
from outrider import Outbox

outbox = Outbox()
with psycopg.connect(os.environ["OUTRIDER_DATABASE_URL"]) as connection:
"""


def test_the_documented_event_stream_is_appended_loaded_and_replayed(newcomer: Adopter) -> None:
    newcomer.run("outrider", "setup")
    printed = documented("docs/producer.md", "from outrider import Event, EventStreams")
    newcomer.write(
        {
            "streams.py": EVENT_STREAM + "".join(f"    {line}\n" for line in printed.splitlines()),
            **documented_files("README.md", "billing.py"),
        }
    )
    worker = newcomer.start("outrider", "worker", "billing", until="worker_active")
    newcomer.run("python", "streams.py")
    services = newcomer.start_services()
    wait_for_output(worker, "{'cents': 990}")
    stop(*services, worker)
    assert worker.log_file.read_text().count("{'cents': 990}") == 2, "the event, and its replay"
