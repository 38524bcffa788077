"""
A model of the protocol between relay and scheduler, and a search through all of its states.

The model has one ordering key, one relay (with restarts), two schedulers, and a budget of faults: outages, refusals,
kills, a lost slot, a send that arrives late. The search tries every interleaving of a few committed rows and checks:

    truth   a row leaves the table only after it was delivered
    order   rows are first delivered in the order of their commits
    live    from every state that can be reached, all rows can still be delivered and the table emptied

Queries see a row later than the relay reads it in the WAL: for an instant always, for long while a commit waits for a
synchronous standby. Writers of one key hold a lock until others see their rows, so rows of one key become visible in
order, and rows that are not visible together belong to one transaction.

The model does not have: several keys, bytes, timeouts, ids that are not in the order of commits.

    python -m tests.model.ownership [rows] [faults] [rules to switch off...]

A rule that is switched off shows that it is needed: the search then prints the shortest way to a violation.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

RULES = {
    "catchup-check": "a relay that starts checks rows up to the end of the WAL against the table",
    "block-load": "a relay that starts loads the keys that have rows in the table",
    "shed-mark": "rows that are shed are marked as the scheduler's before the position is confirmed past them",
    "slot-handover": "a new slot hands over every row that is in the table",
    "own-claim": "a scheduler settles only rows whose claim is still its own",
    "head-check": "a scheduler claims only the oldest row of a key",
    "skip-block": "a row that the relay skips because it is late blocks its key",
    "visibility-check": "while catching up, a missing row is gone only if its transaction had ended before the look",
    "settle-retry": "a mark that finds no row is repeated until the row's transaction has ended",
    "skip-wait": "the position is confirmed past a skipped row only once other sessions see the row",
}
SCHEDULERS = 2

T = TypeVar("T")

# The state of a row in the table. FRESH: the relay's. RDUE: the relay's, and due for the scheduler. SDUE: the
# scheduler's, due. BACK: it backs off. LEASE + "0": scheduler 0 has claimed it.
ABSENT, FRESH, RDUE, SDUE, BACK, LEASE = "-", "F", "D", "d", "b", "L"
SKIPPED = "s"
"""Not a state: what the relay has to write for a row that it left as it is, which is nothing."""


class Relay(NamedTuple):
    position: int  # rows before it are read
    boundary: int  # rows before it are checked against the table
    blocked: bool
    settling: frozenset[int]  # confirmed by the broker, still in the table
    marking: frozenset[tuple[int, str]]  # to be marked, once the statement finds the row
    sending: tuple[int, str] | None  # a row and its step: p(ublishing), v (the broker has it), x (refused)


class State(NamedTuple):
    committed: int
    visible: int  # rows before it are seen by queries
    table: tuple[str, ...]
    late: tuple[bool, ...]  # too late for the relay
    confirmed: int
    relay: Relay | None
    schedulers: tuple[tuple[int, str] | None, ...]  # a row and its step: c(laimed), then as in Relay.sending
    delivered: tuple[int, ...]
    in_transit: tuple[int, ...]  # sends without an answer, which may still arrive
    faults: int


class Violation(Exception):
    pass


class Result(NamedTuple):
    states: int
    violation: str | None
    steps: list[str]
    """The shortest way to the violation."""
    stuck: State | None
    """A state from which the table can never be emptied."""


Steps = Iterator[tuple[str, State]]


def explore(rows: int, faults: int, off: Iterable[str] = ()) -> Result:
    """Search all states. Stops at the first violation, which is one with the fewest steps."""
    switched_off = frozenset(off)
    if unknown := switched_off - RULES.keys():
        raise ValueError(f"unknown rules: {', '.join(sorted(unknown))}")
    start = State(0, 0, (ABSENT,) * rows, (False,) * rows, 0, None, (None,) * SCHEDULERS, (), (), faults)
    reached_from: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {}
    todo, finished = deque([start]), []
    while todo:
        state = todo.popleft()
        if state.committed == rows and all(row == ABSENT for row in state.table):
            finished.append(state)
        try:
            for name, following in _steps(state, switched_off):
                before.setdefault(following, []).append(state)
                if following not in reached_from:
                    reached_from[following] = (state, name)
                    todo.append(following)
        except Violation as violation:
            return Result(len(reached_from), str(violation), _way_to(state, reached_from), None)
    live, todo = set(finished), deque(finished)
    while todo:
        for state in before.get(todo.popleft(), ()):
            if state not in live:
                live.add(state)
                todo.append(state)
    return Result(len(reached_from), None, [], next((state for state in reached_from if state not in live), None))


def _way_to(state: State, reached_from: dict[State, tuple[State, str] | None]) -> list[str]:
    names: list[str] = []
    while (step := reached_from[state]) is not None:
        state, name = step
        names.append(name)
    return names[::-1]


# -- the steps ---------------------------------------------------------------------------------------------------------


def _steps(state: State, off: frozenset[str]) -> Steps:
    yield from _steps_of_the_world(state)
    yield from _start_steps(state, off) if state.relay is None else _relay_steps(state, state.relay, off)
    for number in range(SCHEDULERS):
        yield from _scheduler_steps(state, number, off)


def _steps_of_the_world(state: State) -> Steps:
    n, table = state.committed, state.table
    if n < len(table):
        yield f"commit {n}", state._replace(committed=n + 1, table=_put(table, n, FRESH))
    if state.visible < n:
        yield "visible", state._replace(visible=n)
    for i in range(n):
        if table[i] == FRESH:
            yield f"late {i}", state._replace(table=_put(table, i, RDUE), late=_put(state.late, i, True))
        elif not state.late[i] and table[i] != ABSENT:
            yield f"late {i}", state._replace(late=_put(state.late, i, True))
        if table[i] == BACK or table[i].startswith(LEASE):
            yield f"due {i}", state._replace(table=_put(table, i, SDUE))
    for place, i in enumerate(state.in_transit):
        rest = state.in_transit[:place] + state.in_transit[place + 1 :]
        yield f"{i} arrives late", state._replace(in_transit=rest, delivered=_deliver(state.delivered, i))
        yield f"{i} is lost in transit", state._replace(in_transit=rest)


def _start_steps(state: State, off: frozenset[str]) -> Steps:
    seen = state.table[: state.visible]
    blocked = "block-load" not in off and any(row != ABSENT for row in seen)
    relay = Relay(state.confirmed, state.committed, blocked, frozenset(), frozenset(), None)
    yield "relay starts", state._replace(relay=relay)
    # Creating a slot waits for the transactions that are running, so that queries see every row before the slot.
    if state.faults and state.visible == state.committed:
        table = state.table
        if "slot-handover" not in off:
            table = tuple(SDUE if row in (FRESH, RDUE) else row for row in table)
        yield "slot lost and created", state._replace(confirmed=state.committed, table=table, faults=state.faults - 1)


def _relay_steps(state: State, relay: Relay, off: frozenset[str]) -> Steps:
    if relay.position < state.committed and relay.sending is None:
        yield _read(state, relay, relay.position, off)
    if relay.sending is not None:
        yield from _send_steps(state, relay, *relay.sending, off)
    for i in relay.settling:
        if i < state.visible:
            table = _remove(state, i) if state.table[i] != ABSENT else state.table
            yield f"relay settles {i}", state._replace(table=table, relay=relay._replace(settling=relay.settling - {i}))
    for i, mark in relay.marking:
        if i < state.visible:
            marked = relay._replace(marking=relay.marking - {(i, mark)})
            yield f"relay marks {i}", state._replace(table=_mark(state.table, i, mark), relay=marked)
    unsettled = {*relay.settling, *(i for i, _ in relay.marking), *([relay.sending[0]] if relay.sending else [])}
    confirmable = min(unsettled, default=relay.position)
    if confirmable > state.confirmed:
        yield f"confirm {confirmable}", state._replace(confirmed=confirmable)
    if state.faults:
        in_transit = (relay.sending[0],) if relay.sending and relay.sending[1] == "p" else ()
        yield (
            "relay killed",
            state._replace(relay=None, faults=state.faults - 1, in_transit=state.in_transit + in_transit),
        )


def _read(state: State, relay: Relay, i: int, off: frozenset[str]) -> tuple[str, State]:
    """The relay reads a row and decides what becomes of it."""
    relay = relay._replace(position=i + 1)
    visible = i < state.visible
    if state.late[i]:
        if "skip-block" not in off:
            relay = relay._replace(blocked=True)
        if "skip-wait" in off:
            return f"relay skips {i}", state._replace(relay=relay)
        return f"relay skips {i}", _leave(state, relay, i, SKIPPED, off)
    if i < relay.boundary and "catchup-check" not in off:
        # A row that the query does not see has not been changed by anyone: it is the relay's.
        gone = state.table[i] == ABSENT if visible else "visibility-check" in off
        if gone:
            return f"relay drops {i}", state._replace(relay=relay)
        if visible and state.table[i] not in (FRESH, RDUE):
            return f"relay skips {i}", state._replace(relay=relay._replace(blocked=True))
    if relay.blocked:
        earlier = any(row != ABSENT for row in state.table[: min(i, state.visible)])
        if earlier or relay.marking:
            return f"relay hands over {i}", _leave(state, relay, i, SDUE, off)
        relay = relay._replace(blocked=False)
    return f"relay publishes {i}", state._replace(relay=relay._replace(sending=(i, "p")))


def _send_steps(state: State, relay: Relay, i: int, step: str, off: frozenset[str]) -> Steps:
    idle = relay._replace(sending=None)
    if step == "p":
        sent = state._replace(delivered=_deliver(state.delivered, i), relay=relay._replace(sending=(i, "v")))
        yield f"broker takes {i}", sent
        if state.faults:
            refused = state._replace(relay=relay._replace(sending=(i, "x")), faults=state.faults - 1)
            yield f"broker refuses {i}", refused
    if step == "v":
        yield f"relay has the confirm of {i}", state._replace(relay=idle._replace(settling=idle.settling | {i}))
    if step == "x":
        yield f"relay fails {i}", _leave(state, idle, i, BACK, off)
    if state.faults and step in "pv":
        lost = state._replace(faults=state.faults - 1, in_transit=state.in_transit + ((i,) if step == "p" else ()))
        if "shed-mark" in off:
            yield f"relay sheds {i}", lost._replace(relay=idle._replace(blocked=True))
        else:
            yield f"relay sheds {i}", _leave(lost, idle, i, SDUE, off)


def _scheduler_steps(state: State, number: int, off: frozenset[str]) -> Steps:
    me, lease = f"scheduler {number}", LEASE + str(number)
    work = state.schedulers[number]

    def doing(work: tuple[int, str] | None) -> tuple[tuple[int, str] | None, ...]:
        return _put(state.schedulers, number, work)

    if work is None:
        for i in range(state.visible):
            head = all(row == ABSENT for row in state.table[:i])
            if state.table[i] in (SDUE, RDUE) and (head or "head-check" in off):
                yield f"{me} claims {i}", state._replace(table=_put(state.table, i, lease), schedulers=doing((i, "c")))
        return
    i, step = work
    mine = state.table[i] == lease
    if step == "c":
        yield f"{me} publishes {i}", state._replace(schedulers=doing((i, "p")))
    if step == "p":
        yield (
            f"broker takes {i} from {me}",
            state._replace(delivered=_deliver(state.delivered, i), schedulers=doing((i, "v"))),
        )
        if state.faults:
            yield (
                f"broker refuses {i} from {me}",
                state._replace(schedulers=doing((i, "x")), faults=state.faults - 1),
            )
    if step == "v":
        settles = mine or ("own-claim" in off and state.table[i] != ABSENT)
        table = _remove(state, i) if settles else state.table
        yield f"{me} settles {i}", state._replace(table=table, schedulers=doing(None))
    if step == "x":
        table = _put(state.table, i, BACK) if mine else state.table
        yield f"{me} fails {i}", state._replace(table=table, schedulers=doing(None))
    if state.faults:
        in_transit = state.in_transit + ((i,) if step == "p" else ())
        yield (
            f"{me} killed",
            state._replace(schedulers=doing(None), faults=state.faults - 1, in_transit=in_transit),
        )


# -- one row -----------------------------------------------------------------------------------------------------------


def _leave(state: State, relay: Relay, i: int, mark: str, off: frozenset[str]) -> State:
    """The relay leaves a row to the scheduler: its key is blocked, and the mark is written once the row is visible."""
    if mark != SKIPPED:
        relay = relay._replace(blocked=True)
    if i < state.visible:
        return state._replace(table=_mark(state.table, i, mark), relay=relay)
    if "settle-retry" in off:
        return state._replace(relay=relay)
    return state._replace(relay=relay._replace(marking=relay.marking | {(i, mark)}))


def _mark(table: tuple[str, ...], i: int, mark: str) -> tuple[str, ...]:
    """Only a row that the relay still owns is changed."""
    return _put(table, i, mark) if table[i] in (FRESH, RDUE) and mark != SKIPPED else table


def _deliver(delivered: tuple[int, ...], i: int) -> tuple[int, ...]:
    if i in delivered:
        return delivered
    if any(j not in delivered for j in range(i)):
        raise Violation(f"order: row {i} is delivered before an earlier one; delivered: {delivered}")
    return (*delivered, i)


def _remove(state: State, i: int) -> tuple[str, ...]:
    if i not in state.delivered:
        raise Violation(f"truth: row {i} is removed and was not delivered")
    return _put(state.table, i, ABSENT)


def _put(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def main(arguments: list[str]) -> int:
    numbers = [int(argument) for argument in arguments if argument.isdigit()]
    off = [argument for argument in arguments if not argument.isdigit()]
    rows, faults = (numbers + [3, 1][len(numbers) :])[:2]
    result = explore(rows, faults, off)
    print(f"{rows} rows, {faults} faults, off: {', '.join(off) or 'nothing'}: {result.states:,} states")
    if result.violation:
        print(f"VIOLATION {result.violation}\nafter: {' | '.join(result.steps)}")
    elif result.stuck:
        print(f"STUCK {result.stuck}")
    return int(result.violation is not None or result.stuck is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
