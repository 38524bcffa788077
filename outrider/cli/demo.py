"""
`outrider demo`: a demonstration that takes a few seconds and needs only this package.

The servers are embedded and private. Nothing is left behind, also after Ctrl-C.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import click

from outrider.cli._options import Number
from outrider.errors import OutboxError

if TYPE_CHECKING:
    from outrider.demo.servers import BrokerKind


@click.command(name="demo")
@click.option(
    "--seconds", type=Number(min=3, max=3600), default=12, show_default=True, help="how long orders are committed"
)
@click.option("--rate", type=Number(min=1, max=2000), default=200, show_default=True, help="orders per second")
@click.option(
    "--broker",
    type=click.Choice(["valkey", "rabbitmq"]),
    default="valkey",
    show_default=True,
    help="broker to start, and to kill",
)
@click.option(
    "--json", "as_json", is_flag=True, help="print one JSON object at the end, and the progress to standard error"
)
def command(seconds: float, rate: float, broker: BrokerKind, as_json: bool) -> None:
    """
    Show that no order is lost when the broker is killed.

    Starts PostgreSQL, a broker, the relay and the scheduler, commits orders, kills the broker, starts it again, and
    compares what was committed with what was delivered. Exit status 1 if they differ.
    """
    try:
        from rich.console import Console

        from outrider.demo.scenario import run_demo
        from outrider.demo.screen import LineScreen, LiveScreen, print_summary
        from outrider.embedded.process import EmbeddedServerError
    except ImportError as error:
        raise OutboxError(f"the demo needs {error.name}: pip install 'outrider[embedded]'") from error

    # SIGTERM ends it as Ctrl-C does: servers are stopped and files removed on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=as_json)
    try:
        with (LiveScreen if console.is_terminal else LineScreen)(console) as screen:
            result = run_demo(screen, seconds=seconds, rate=rate, broker=broker)
    except EmbeddedServerError as error:
        raise OutboxError(str(error).partition("\n")[0]) from error
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        print_summary(console, result)
    if not result.is_lossless:
        sys.exit(1)
