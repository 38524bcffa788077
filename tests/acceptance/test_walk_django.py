"""A new user with Django and Celery, from the wheel: "The first hour" of docs/django.md, and a stock Celery worker."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.documentation import documented
from tests.fixtures.wheel import Adopter, stop, wait_for_output

DATABASE = """
from psycopg.conninfo import conninfo_to_dict
_address = conninfo_to_dict(os.environ["SHOP_DATABASE"])
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": _address["dbname"],
    "HOST": _address["host"], "PORT": _address["port"], "USER": _address["user"]}}
"""

ORDERS = {
    "orders/__init__.py": "",
    "orders/models.py": """
from django.db import models

class Order(models.Model):
    pass
""",
    "orders/tasks.py": """
from celery import shared_task

@shared_task
def bill(order_id):
    print(f"billed {order_id}")
""",
}

PLACE = """
from orders.models import Order
from orders.tasks import bill
order = Order()
"""


def test_the_first_hour_delivers_an_event_and_a_task_to_a_stock_worker(newcomer: Adopter) -> None:
    newcomer.settings = {  # nothing of Outrider comes from the environment
        "SHOP_DATABASE": newcomer.settings["OUTRIDER_DATABASE_URL"],
        "BROKER_URL": newcomer.settings["OUTRIDER_BROKER_URL"],
    }
    newcomer.run("django-admin", "startproject", "shop", ".")
    settings = documented("docs/django.md", "# settings.py").replace("[..., ", '[*INSTALLED_APPS, "orders", ')
    append(newcomer.directory / "shop/settings.py", settings + DATABASE)
    append(newcomer.directory / "shop/__init__.py", documented("docs/django.md", "# shop/__init__.py"))
    newcomer.write({"shop/celery.py": documented("docs/django.md", "# shop/celery.py"), **ORDERS})
    newcomer.run("python", "manage.py", "makemigrations", "orders")
    newcomer.run("python", "manage.py", "migrate")
    newcomer.run("python", "manage.py", "outbox_setup")
    newcomer.run("python", "manage.py", "check", "--database", "default", "--fail-level", "WARNING")

    worker = newcomer.start("celery", "-A", "shop", "worker", "--concurrency=1", "--loglevel=INFO", until="ready.")
    place = PLACE + documented("docs/django.md", "# anywhere: events") + "    bill.delay(order.id)\n"
    newcomer.run("python", "manage.py", "shell", "-c", place)
    relay = newcomer.start("python", "manage.py", "outbox_relay", until="broker_connected")
    scheduler = newcomer.start("python", "manage.py", "outbox_retry_scheduler", until="scheduler_active")
    wait_for_output(worker, "billed 1")
    wait_for_output(relay, "NoRoute")  # the event: nothing is bound to the exchange yet
    stop(relay, scheduler, worker)


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)
