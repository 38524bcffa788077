"""A new user with FastAPI and SQLAlchemy, from the wheel: the files of docs/producer.md and docs/consumer.md."""

from __future__ import annotations

import signal

from outrider.embedded.process import free_port
from tests.fixtures.documentation import documented_files
from tests.fixtures.waiting import wait_for
from tests.fixtures.wheel import Adopter, stop

ORDER = """
import sys
import httpx

number, customer = int(sys.argv[2]), sys.argv[3]
print(httpx.post(sys.argv[1] + "/orders", json={"number": number, "customer": customer}).status_code)
"""


def test_an_order_of_the_documented_application_reaches_the_documented_consumer(newcomer: Adopter) -> None:
    newcomer.write(documented_files("docs/producer.md", "shop/app.py"))
    newcomer.write(documented_files("docs/consumer.md", "shop/consumers.py"))
    newcomer.write({"order.py": ORDER})
    address = newcomer.settings["OUTRIDER_DATABASE_URL"]
    newcomer.settings |= {"DATABASE_URL": address.replace("postgresql://", "postgresql+asyncpg://")}
    port = free_port()
    web = newcomer.start("uvicorn", "shop.app:app", "--port", str(port), until="startup complete")
    assert "created" in newcomer.run("outrider", "setup")
    worker = newcomer.start("outrider", "worker", "shop.consumers", until="worker_active")
    services = newcomer.start_services()

    def order(number: int, customer: str) -> str:
        return newcomer.run("python", "order.py", f"http://127.0.0.1:{port}", str(number), customer).strip()

    assert order(1, "Ada") == "201"
    assert order(2, "unknown") == "201"
    assert order(2, "again") == "500", "the number exists: nothing is published"

    def dead_letters() -> str:
        return newcomer.run("outrider", "dlq", "list", "billing.on_order")

    wait_for(lambda: "no such customer" in dead_letters(), message="the consumer did not reject the order")
    assert len(dead_letters().splitlines()) == 2, "a heading, and one order"
    stop(*services, worker)
    web.end(signal.SIGTERM, 60)
