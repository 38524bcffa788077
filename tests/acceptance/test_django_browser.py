"""
The admin in a real browser, as an operator uses it.

With DJANGO_SCREENSHOTS=docs/images in the environment, the documentation's pictures are taken on the way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from outrider import Event, Outbox
from outrider.embedded.process import free_port
from outrider.storage.decision import Burial, Retry
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.django import Site, configure_django, django_connection
from tests.fixtures.services import RunService
from tests.fixtures.waiting import wait_for

pytest_plugins = ["tests.fixtures.browser"]
configure_django()

REFUSED = "NoRoute: no queue is bound to '{}' in exchange 'shop'"


@pytest.fixture
def address(browser: Chrome, database: Database, run_service: RunService) -> Iterator[str]:
    """The site with an operator, and an outbox with failed messages."""
    from django.contrib.auth.models import User
    from django.core.management import call_command

    with django_connection(database.dsn):
        call_command("migrate", verbosity=0)
        User.objects.create_superuser("operator", password="secret")
    with database.connect() as connection:
        fill(Store(connection, "public"))
    port = free_port()
    server = Site(database.dsn, {"REDACTOR": f"{__name__}.without_card"}).start(
        run_service, "runserver", "--noreload", f"127.0.0.1:{port}"
    )
    server.wait_for_line("Quit the server", deadline_seconds=60)
    yield f"http://127.0.0.1:{port}/admin/"
    browser.get("about:blank")  # or its open connection outlives the server's


def without_card(event_type: str, payload: Any, headers: Any) -> Any:
    return {**payload, "card": "•••"}


def fill(store: Store) -> None:
    types = ["order.placed"] * 6 + ["order.paid"] * 3 + ["invoice.sent"] * 2 + ["shipment.booked"] * 4
    with store.connection.transaction():
        Outbox(exchange="shop").publish_many(
            store.connection,
            [
                Event(event_type=each, payload={"order": number, "card": "4111 1111"}, aggregate=("order", str(number)))
                for number, each in enumerate(types, start=41)
            ],
        )
    store.fail([Retry(number, REFUSED.format("invoices"), 0.0) for number in (10, 11)])
    store.bury([Burial(number, "max attempts", REFUSED.format(f"shipments-{number}"), 1) for number in (12, 13, 14)])
    store.bury([Burial(15, "rejected", "MessageTooLarge: 52 MB, and the broker takes 16 MB", 1)])


def test_an_operator_finds_a_failure_and_repairs_it(browser: Chrome, address: str, database: Database) -> None:
    def see(path: str) -> None:
        browser.get(address + path)

    def text() -> str:
        try:
            return browser.find_element(By.ID, "container").text
        except (NoSuchElementException, StaleElementReferenceException):
            return ""  # one page is just being replaced by the next

    def click(label: str) -> None:
        browser.find_element(By.LINK_TEXT, label).click()

    def choose(action: str) -> None:
        browser.find_element(By.ID, "action-toggle").click()
        Select(browser.find_element(By.NAME, "action")).select_by_visible_text(action)
        browser.find_element(By.CSS_SELECTOR, ".actions button").click()

    def counts() -> tuple[int, int]:
        with database.connect() as connection:
            row = connection.execute(
                "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM outbox_dead_letter)"
            ).fetchone()
        assert row is not None
        return row[0], row[1]

    see("")
    browser.find_element(By.NAME, "username").send_keys("operator")
    browser.find_element(By.NAME, "password").send_keys("secret")
    browser.find_element(By.CSS_SELECTOR, "input[type=submit]").click()
    wait_for(lambda: "Dead letters" in text(), deadline_seconds=60)

    see("outrider/outboxmessage/")
    summary = browser.find_element(By.ID, "outbox-summary").text
    assert "order.placed 6 0" in summary
    assert "invoice.sent 2 2" in summary
    assert "4 dead letters" in summary
    picture(browser, "django-admin-outbox")
    see("outrider/outboxmessage/?attempts=some")
    choose("Retry now, with attempts reset")
    wait_for(lambda: "Messages that are due now: 2." in text(), deadline_seconds=60)

    see("outrider/deadletter/")
    browser.find_element(By.CSS_SELECTOR, ".object-tools a").click()
    wait_for(lambda: "shipment.booked max attempts" in text(), deadline_seconds=60)
    picture(browser, "django-admin-failures")
    click("3")
    wait_for(lambda: "3 dead letters" in text(), deadline_seconds=60)
    picture(browser, "django-admin-dead-letters")

    choose("Discard selected dead letters")
    wait_for(lambda: "Discard 3 dead letters?" in text(), deadline_seconds=60)
    picture(browser, "django-admin-discard")
    click("No, take me back")
    wait_for(lambda: "3 dead letters" in text(), deadline_seconds=60)
    assert counts() == (11, 4)

    choose("Replay selected dead letters")
    wait_for(lambda: "They go back into the outbox." in text(), deadline_seconds=60)
    browser.find_element(By.CSS_SELECTOR, "input[type=submit]").click()
    wait_for(lambda: "Dead letters replayed: 3." in text(), deadline_seconds=60)
    assert counts() == (14, 1)

    see("outrider/deadletter/15/change/")
    wait_for(lambda: "•••" in text(), deadline_seconds=60)
    assert "4111" not in browser.page_source
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
    assert [entry for entry in errors if "favicon" not in entry["message"]] == []


def picture(browser: Chrome, name: str) -> None:
    if folder := os.environ.get("DJANGO_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))
