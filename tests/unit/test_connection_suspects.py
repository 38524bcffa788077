"""Which message is to blame for lost connections, and that most losses blame none."""

from __future__ import annotations

from outrider.delivery.connection_suspects import MAX_BLAMED, REMEMBER_SECONDS, ConnectionSuspects


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lose(suspects: ConnectionSuspects, *in_flight: int, protocol_error: bool = False) -> int | None:
    return suspects.connection_lost(in_flight, protocol_error=protocol_error)


def test_one_lost_connection_makes_no_suspects() -> None:
    suspects = ConnectionSuspects()
    assert lose(suspects, 1, 2) is None
    assert not suspects


def test_a_message_of_two_lost_connections_is_a_suspect_and_is_blamed_when_it_was_alone() -> None:
    suspects = ConnectionSuspects()
    lose(suspects, 1, 2, 3)
    assert lose(suspects, 2, 4) is None
    assert suspects
    assert lose(suspects, 4) is None  # its second loss only
    assert lose(suspects, 2) == 2
    assert lose(suspects, 4) == 4
    assert not suspects


def test_a_protocol_error_makes_suspects_at_once() -> None:
    suspects = ConnectionSuspects()
    lose(suspects, 1, 2, protocol_error=True)
    assert suspects
    assert lose(suspects, 1) == 1


def test_an_answer_clears_a_message() -> None:
    suspects = ConnectionSuspects()
    lose(suspects, 1)
    suspects.answered(1, confirmed=True)
    lose(suspects, 1)
    assert not suspects
    assert lose(suspects, 1) is None


def test_losses_that_lie_far_apart_are_not_connected() -> None:
    clock = Clock()
    suspects = ConnectionSuspects(clock)
    lose(suspects, 1)
    clock.now += REMEMBER_SECONDS + 1
    lose(suspects, 1)
    assert not suspects
    lose(suspects, 1)
    assert suspects
    clock.now += REMEMBER_SECONDS + 1
    assert not suspects


def test_a_broker_that_crashes_with_every_message_does_not_spend_the_attempts_of_all() -> None:
    clock = Clock()
    suspects = ConnectionSuspects(clock)
    lose(suspects, *range(100), protocol_error=True)
    blamed = [lose(suspects, each) for each in range(50)]
    assert blamed == [*range(MAX_BLAMED), *[None] * (50 - MAX_BLAMED)]
    suspects.answered(99, confirmed=True)  # the broker works: what crashes now is the message
    assert lose(suspects, 60) == 60
