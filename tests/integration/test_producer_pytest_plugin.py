"""The pytest plugin with a real database, and as a plugin of a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outrider import Outbox
from tests.fixtures.database import Database

APPLICATION_TEST = """
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outrider import Outbox

def test_recorded(outbox, assert_event_published, assert_task_sent, drain_outbox):
    Outbox().publish(None, "order.placed", {"order": 1})
    assert_event_published("order.placed", payload={"order": 1})
    assert len(drain_outbox()) == 1
"""


def test_a_real_table_is_drained_in_the_callers_transaction(database: Database, drain_outbox: Any) -> None:
    with database.connect(autocommit=False) as connection:
        Outbox("shop").publish(connection, "a", {"n": 1}, deliver_after=60)
        Outbox("shop").publish(connection, "b", b"\x00")
        delivered = drain_outbox(connection)
        assert [(each.routing_key, each.body) for each in delivered] == [("a", b'{"n":1}'), ("b", b"\x00")]
        assert drain_outbox(connection) == []
        connection.rollback()
    with database.connect() as connection:
        assert drain_outbox(connection) == []


def test_the_installed_plugin_works_in_any_run_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(APPLICATION_TEST)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout


def test_a_rollback_of_a_sqlalchemy_session_takes_its_messages_back(database: Database, outbox: Any) -> None:
    engine = create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        session.connection()
        Outbox().publish(session, "kept", {})
        nested = session.begin_nested()
        Outbox().publish(session, "undone", {})
        nested.rollback()
        with session.begin_nested():
            Outbox().publish(session, "kept too", {})
        session.commit()
        session.connection()
        Outbox().publish(session, "undone", {})
        session.rollback()
    engine.dispose()
    assert [message.event_type for message in outbox.messages] == ["kept", "kept too"]
