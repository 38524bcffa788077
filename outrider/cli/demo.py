"""
`outrider demo`: see it work in a few seconds, with nothing but this package. Servers are embedded and private; nothing is
left behind, also after Ctrl-C.
"""

from __future__ import annotations

import json
import signal
import sys

import click

from outrider.cli._options import Number
from outrider.errors import OutboxError


@click.command(name="demo")
@click.option(
    "--seconds", type=Number(min=3, max=3600), default=12, show_default=True, help="how long the shop is open"
)
@click.option("--rate", type=Number(min=1, max=2000), default=200, show_default=True, help="orders in a second")
@click.option(
    "--broker",
    type=click.Choice(["valkey", "rabbitmq"]),
    default="valkey",
    show_default=True,
    help="which broker is started, and killed",
)
@click.option(
    "--json", "as_json", is_flag=True, help="print one JSON object at the end, and progress to standard error"
)
def command(seconds: float, rate: float, broker: str, as_json: bool) -> None:
    """
    Show a shop whose orders survive the death of the broker.

    Starts PostgreSQL, a broker, the relay and the scheduler, commits orders, kills the broker, brings it back, and
    compares what was committed with what was delivered. Exit status 1 if they differ.
    """
    try:
        from rich.console import Console

        from outrider.demo.scenario import Options, tell
        from outrider.demo.screen import LineScreen, LiveScreen, print_summary
        from outrider.embedded import EmbeddedServerError
    except ImportError as error:
        raise OutboxError(f"the demo needs {error.name}: pip install 'outrider[embedded]'") from error

    # SIGTERM ends it as Ctrl-C does: servers are stopped and files removed on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=as_json)
    options = Options(seconds=seconds, rate=rate, broker="rabbitmq" if broker == "rabbitmq" else "valkey")
    try:
        with (LiveScreen if console.is_terminal else LineScreen)(console) as screen:
            verdict = tell(options, screen)
    except EmbeddedServerError as error:
        raise OutboxError(str(error).partition("\n")[0]) from error
    if as_json:
        click.echo(json.dumps(verdict.as_json()))
    else:
        print_summary(console, verdict)
    if not verdict.kept:
        sys.exit(1)
