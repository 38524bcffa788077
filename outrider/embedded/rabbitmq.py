"""
A private RabbitMQ node, from the files of Debian's package (or another installation) on this machine.

The node has its own ports, name, cookie, data and configuration, and its own epmd (Erlang's port mapper), which is
started before the node and ends after it. The machine's RabbitMQ service, if any, is neither used nor touched.
A start takes some five seconds, a `ctl` call one.

`python -m outrider.embedded.rabbitmq --install` installs the package (needs root and apt-get) without starting the
system's service.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from outrider.embedded.install import apt_get_install, install_main
from outrider.embedded.process import EmbeddedServerError, ServerProcess, answers, free_port, run_to_end
from outrider.embedded.server import EmbeddedServer

# The scripts themselves: the wrappers on PATH change the user and allow only root and `rabbitmq`.
SCRIPT_DIRECTORIES = (
    "/usr/lib/rabbitmq/bin",
    "/opt/rabbitmq/sbin",
    "/opt/homebrew/opt/rabbitmq/sbin",
    "/usr/local/opt/rabbitmq/sbin",
)

CONFIGURATION: Mapping[str, str] = {
    "vm_memory_high_watermark.relative": "0.4",
    "disk_free_limit.absolute": "50MB",
    "log.console": "true",  # the console is the server's log file
    "log.console.use_colors": "off",
    "log.file": "false",
    "cluster_name": "outbox-embedded",
}

MISSING = "RabbitMQ is not installed: run `python -m outrider.embedded.rabbitmq --install` (root, Debian or Ubuntu)"
CTL_SECONDS = 60
POLICY_FILE = Path("/usr/sbin/policy-rc.d")
DENY_START = "#!/bin/sh\nexit 101\n"


def find_rabbitmq() -> Path | None:
    """The directory of RabbitMQ's scripts; None if RabbitMQ or Erlang's epmd is not installed."""
    if shutil.which("epmd") is None:
        return None
    for directory in map(Path, SCRIPT_DIRECTORIES):
        if (directory / "rabbitmq-server").exists():
            return directory
    return None


class RabbitMQ(EmbeddedServer):
    name = "rabbitmq"
    stop_signal = signal.SIGTERM
    start_deadline_seconds = 90.0

    def __init__(
        self,
        *,
        base_dir: Path | None = None,
        configuration: Mapping[str, str] | None = None,
        management: bool = False,
    ) -> None:
        scripts = find_rabbitmq()
        if scripts is None:
            raise EmbeddedServerError(MISSING)
        super().__init__(base_dir=base_dir)
        self.scripts = scripts
        self.epmd_port = free_port()
        self.management_port = free_port() if management else None
        self.configuration = {**CONFIGURATION, **(configuration or {})}
        self.distribution_port = free_port()
        self._environment = self._make_environment()
        self._epmd: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def ctl(self, *arguments: str, timeout_seconds: float = CTL_SECONDS) -> str:
        """Run rabbitmqctl against this node and return what it prints."""
        command = [str(self.scripts / "rabbitmqctl"), "--quiet", *arguments]
        return run_to_end(command, env=self._environment, cwd=self.directory, timeout=timeout_seconds)

    def _make_environment(self) -> dict[str, str]:
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        own = {
            "HOME": str(self.directory),  # the Erlang cookie is made there
            "RABBITMQ_NODENAME": f"outbox-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.directory / "generated"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.directory / "node.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
            "RABBITMQ_CTL_ERL_ARGS": loopback,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The script then execs the Erlang VM instead of running it as a child: one process, one pid.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        foreign = ("RABBITMQ_", "ERL_", "NOTIFY_SOCKET")
        return {**{key: value for key, value in os.environ.items() if not key.startswith(foreign)}, **own}

    def _launch(self) -> ServerProcess:
        self._write_configuration()
        if self._epmd is None or self._epmd.exit_code is not None:
            self._epmd = self._start_epmd()
        return self._launch_with([str(self.scripts / "rabbitmq-server")], self._environment)

    def _start_epmd(self) -> ServerProcess:
        """Start epmd in the foreground before the node, which would otherwise start one that keeps running."""
        epmd = shutil.which("epmd")
        assert epmd is not None
        process = self._launch_with([epmd], self._environment)
        process.wait_until_ready(lambda: answers(self.epmd_port), self.start_deadline_seconds)
        return process

    def _write_configuration(self) -> None:
        configuration = dict(self.configuration)
        if self.management_port is not None:
            configuration |= {"management.tcp.ip": "127.0.0.1", "management.tcp.port": str(self.management_port)}
        lines = (f"{key} = {value}\n" for key, value in configuration.items())
        (self.directory / "rabbitmq.conf").write_text("".join(lines))
        (self.directory / "rabbitmq-env.conf").touch()
        plugins = "rabbitmq_management" if self.management_port is not None else ""
        (self.directory / "enabled_plugins").write_text(f"[{plugins}].\n")

    def _is_ready(self) -> bool:
        """The node answers an AMQP header with a method frame (type 1) on channel 0."""
        return answers(self.port, b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00")


def install_rabbitmq() -> None:
    """Install Debian's rabbitmq-server. Its service is neither started nor enabled for the next boot."""
    with without_service_start(POLICY_FILE):
        apt_get_install("RabbitMQ", "rabbitmq-server")
    subprocess.run(["update-rc.d", "rabbitmq-server", "disable"], check=False, capture_output=True)


@contextmanager
def without_service_start(policy_file: Path) -> Iterator[None]:
    """Deny service starts during an installation, with Debian's policy file. An existing file is left unchanged."""
    if policy_file.exists():
        yield
        return
    try:
        policy_file.write_text(DENY_START)
        policy_file.chmod(0o755)
        yield
    finally:
        policy_file.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    return install_main(
        arguments,
        module="outrider.embedded.rabbitmq",
        name="RabbitMQ",
        find=find_rabbitmq,
        install=install_rabbitmq,
        missing=MISSING,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
