"""The embedded servers: they start, keep their data through crashes, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from outrider.embedded.postgres import Postgres, available_versions
from outrider.embedded.process import EmbeddedServerError, ProcessGuard, free_port
from outrider.embedded.rabbitmq import RabbitMQ, find_rabbitmq
from outrider.embedded.server import EmbeddedServer
from outrider.embedded.valkey import Valkey
from tests.fixtures.broker import Broker
from tests.fixtures.waiting import wait_for

needs_rabbitmq = pytest.mark.skipif(find_rabbitmq() is None, reason="RabbitMQ is not installed")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

every_server = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Postgres, id="postgres"),
        pytest.param(Valkey, id="valkey"),
        pytest.param(RabbitMQ, id="rabbitmq", marks=needs_rabbitmq),
    ],
)


def processes_of(directory: Path) -> set[int]:
    """Processes that name a server's directory or work in it, which all descendants of the server do."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                working_directory = str((process / "cwd").readlink())
            except OSError:
                continue  # ended, or a kernel thread
            if directory.name in command or directory.name in working_directory:
                found.add(int(process.name))
    return found


def shared_memory_ids() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def run_owner(kind: type[EmbeddedServer], action: str) -> subprocess.Popen[str]:
    """A process that starts a server, runs `action`, prints the server's directory and waits."""
    program = f"""
import signal
from {kind.__module__} import {kind.__name__}
with {kind.__name__}() as server:
    {action}
    print(server.directory, flush=True)
    signal.pause()
"""
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)


def directory_of(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


@needs_linux
@every_server
def test_a_closed_server_leaves_no_process_and_no_file(kind: type[EmbeddedServer]) -> None:
    with kind() as server:
        assert len(processes_of(server.directory)) >= 2, "the server and its guard"
    assert processes_of(server.directory) == set()
    assert not server.directory.exists()
    server.close()


@needs_linux
@pytest.mark.parametrize(
    ("kind", "action"),
    [
        *(
            pytest.param(kind, action, id=f"{state} {kind.__name__}")
            for kind in (Postgres, Valkey)
            for state, action in (("running", "pass"), ("killed", "server.kill()"), ("suspended", "server.suspend()"))
        ),
        # One case only because its start is slow; a suspended server is the hardest to end.
        pytest.param(RabbitMQ, "server.suspend()", id="suspended RabbitMQ", marks=needs_rabbitmq),
    ],
)
def test_a_server_ends_with_its_killed_owner(kind: type[EmbeddedServer], action: str) -> None:
    with run_owner(kind, action) as owner:
        directory = directory_of(owner)
        assert len(processes_of(directory)) >= 1
        owner.kill()
    wait_for(lambda: not processes_of(directory), deadline_seconds=60, message="processes remain")
    wait_for(lambda: not directory.exists(), message="files remain")


@needs_linux
@pytest.mark.parametrize("kind", [Postgres, Valkey])
def test_an_interrupted_owner_leaves_no_process_and_no_file(kind: type[EmbeddedServer]) -> None:
    with run_owner(kind, "pass") as owner:
        directory = directory_of(owner)
        os.killpg(owner.pid, signal.SIGINT)  # to the whole process group, like a terminal
    assert owner.returncode != 0
    assert processes_of(directory) == set()
    assert not directory.exists()


@needs_linux
@every_server
def test_a_server_ends_with_its_killed_guard(kind: type[EmbeddedServer]) -> None:
    server = kind()
    server.start()
    os.kill(server.guard.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(server.directory), deadline_seconds=60, message="processes remain")
    with pytest.raises(EmbeddedServerError, match="guard"):
        server.restart()
    server.close()
    assert not server.directory.exists()


@needs_linux
def test_a_killed_postgres_leaves_no_shared_memory() -> None:
    with Postgres(durable=False) as server:
        identifier = (server.data_dir / "postmaster.pid").read_text().splitlines()[6].split()[1]
        assert identifier in shared_memory_ids()
        server.kill()
        assert identifier not in shared_memory_ids()


def test_postgres_keeps_its_rows_through_every_kind_of_end() -> None:
    with Postgres() as server:
        with psycopg.connect(server.dsn()) as connection:
            connection.execute("CREATE TABLE kept (number int)")
        ends: list[Callable[[], None]] = [
            server.kill,
            server.stop,
            lambda: server.stop("immediate"),
            lambda: server.stop("smart"),
            lambda: os.kill(server.pid, signal.SIGKILL),
        ]
        for number, end in enumerate(ends):
            with psycopg.connect(server.dsn()) as connection:
                connection.execute("INSERT INTO kept VALUES (%s)", [number])
            end()
            wait_for(lambda: not server.is_running)
            server.start()
        with psycopg.connect(server.dsn()) as connection:
            rows = connection.execute("SELECT number FROM kept ORDER BY number").fetchall()
        assert rows == [(number,) for number in range(len(ends))]


@pytest.mark.parametrize("version", available_versions())
def test_every_available_postgres_version_has_logical_replication(version: int) -> None:
    with (
        Postgres(version=version, durable=False, settings={"work_mem": "5MB"}) as server,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        assert connection.info.server_version // 10000 == version
        assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
        connection.execute("SELECT pg_create_logical_replication_slot('slot', 'pgoutput')")


def test_the_error_for_a_missing_postgres_version_names_the_available_ones() -> None:
    with pytest.raises(EmbeddedServerError, match="PostgreSQL 9 is not installed; available"):
        Postgres(version=9)


def test_alter_system_has_precedence_over_our_settings() -> None:
    with Postgres(durable=False) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_replication_slots = 7")
        server.restart()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SHOW max_replication_slots").fetchone() == ("7",)


def test_a_suspended_postgres_does_not_answer_until_it_is_resumed() -> None:
    with Postgres(durable=False) as server, psycopg.connect(server.dsn(), autocommit=True) as connection:
        server.suspend()
        connection.pgconn.send_query(b"SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(server.dsn(), connect_timeout=2)
        assert connection.pgconn.is_busy()
        server.resume()
        answer = connection.pgconn.get_result()
        assert answer is not None
        assert answer.get_value(0, 0) == b"1"
        assert connection.pgconn.get_result() is None


def test_a_given_data_directory_is_kept_and_used_again(shared_directory: Path) -> None:
    data_dir = shared_directory / "data"
    with Postgres(data_dir, durable=False) as server, psycopg.connect(server.dsn()) as connection:
        connection.execute("CREATE TABLE kept ()")
    with Postgres(data_dir, durable=False) as server, psycopg.connect(server.dsn()) as connection:
        connection.execute("TABLE kept")


def test_base_dir_holds_everything(shared_directory: Path) -> None:
    with Postgres(durable=False, base_dir=shared_directory) as server:
        assert server.directory.parent == shared_directory
    assert list(shared_directory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")
def test_a_directory_that_the_server_user_cannot_enter_is_named(shared_directory: Path) -> None:
    shared_directory.chmod(0o700)
    with pytest.raises(EmbeddedServerError, match=r"cannot enter .*chmod o\+x"), Postgres(base_dir=shared_directory):
        pass
    assert list(shared_directory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")
def test_binaries_that_the_server_user_cannot_reach_are_copied(
    shared_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a virtual environment below root's home, which other users may not enter."""
    monkeypatch.setattr("outrider.embedded.postgres.can_enter", lambda path, user: "site-packages" not in str(path))
    with Postgres(durable=False, version=18) as server, psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(server.directory)


def test_a_server_that_cannot_start_raises_with_its_log_and_removes_its_files() -> None:
    server = Postgres(durable=False, settings={"shared_buffers": "nonsense"})
    with pytest.raises(EmbeddedServerError, match="invalid value for parameter"), server:
        pass
    assert not server.directory.exists()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_valkey_keeps_what_it_has_accepted(end: str) -> None:
    with Valkey() as server:
        broker = Broker(server.url)
        queue = broker.declare_queue()
        broker.publish(b"kept", routing_key=queue)
        getattr(server, end)()
        server.start()
        assert [message.body for message in broker.get_all(queue, 1)] == [b"kept"]


@needs_rabbitmq
def test_rabbitmq_keeps_persistent_messages_through_a_crash(disposable_rabbitmq: RabbitMQ) -> None:
    broker = Broker(disposable_rabbitmq.url)
    queue = broker.declare_queue()
    broker.publish(b"kept", routing_key=queue, message_id="m-1", headers={"tenant": "blue"})
    disposable_rabbitmq.kill()
    with pytest.raises(ConnectionRefusedError):
        broker.depth(queue)
    disposable_rabbitmq.start()
    (message,) = broker.get_all(queue, 1)
    assert (message.body, message.message_id, message.headers["tenant"]) == (b"kept", "m-1", "blue")


@needs_rabbitmq
def test_rabbitmq_can_be_controlled_with_ctl(disposable_rabbitmq: RabbitMQ) -> None:
    disposable_rabbitmq.ctl("add_user", "limited", "secret")
    assert "limited" in disposable_rabbitmq.ctl("list_users")
    with pytest.raises(EmbeddedServerError, match="add_user limited secret failed"):
        disposable_rabbitmq.ctl("add_user", "limited", "secret")
    disposable_rabbitmq.ctl("stop_app")
    assert not disposable_rabbitmq.is_ready_within(0)


@needs_rabbitmq
def test_a_disposable_rabbitmq_is_running_again_for_the_next_test(disposable_rabbitmq: RabbitMQ) -> None:
    """The previous test stopped the application."""
    assert disposable_rabbitmq.is_ready_within(0)
    disposable_rabbitmq.suspend()


@needs_rabbitmq
def test_a_suspended_rabbitmq_is_resumed_for_the_next_test(disposable_rabbitmq: RabbitMQ) -> None:
    assert disposable_rabbitmq.is_ready_within(0)


@needs_rabbitmq
@needs_linux
def test_rabbitmq_listens_on_loopback_only(disposable_rabbitmq: RabbitMQ) -> None:
    listening, loopback = "0A", {"0100007F", "00000000000000000000000001000000"}
    own = {disposable_rabbitmq.port, disposable_rabbitmq.epmd_port, disposable_rabbitmq.distribution_port}
    addresses: dict[int, set[str]] = {port: set() for port in own}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == listening and int(port, 16) in own:
                addresses[int(port, 16)].add(address)
    assert all(found and found <= loopback for found in addresses.values()), addresses


def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    guard = ProcessGuard()
    process = guard.start(
        ["/no/such/program"], directory=tmp_path, environment={}, log_file=tmp_path / "log", stop_signal=signal.SIGKILL
    )
    with pytest.raises(EmbeddedServerError, match="cannot run /no/such/program"):
        process.wait_until_ready(lambda: False, deadline_seconds=5)
    guard.close()


def test_a_free_port_is_free_and_not_used_for_outgoing_connections() -> None:
    ports = set()
    for _ in range(20):
        port = free_port()
        with socket.socket() as listener:  # immediately: other processes use ports too
            listener.bind(("127.0.0.1", port))
        assert port < 32768
        ports.add(port)
    assert len(ports) > 1


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory that other users may enter, unlike those of pytest."""
    with TemporaryDirectory(prefix="outbox-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)
