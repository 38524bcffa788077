"""The list of packages behind `make test-newest`."""

from __future__ import annotations

from tests.newest import differences, requirements


def test_bounds_are_left_out_and_the_projects_own_extras_resolved() -> None:
    project: dict[str, object] = {
        "name": "outrider",
        "optional-dependencies": {
            "services": ["kombu[redis]>=5.5,<5.8", "psycopg[binary]>=3.2"],
            "consumer": ["outrider[services]", "aio-pika>=9.5"],
            "other": ["psycopg[binary]>=3.3"],
        },
    }
    assert requirements(project) == ["aio-pika", "kombu[redis]", "psycopg[binary]"]


def test_only_packages_of_both_environments_are_compared() -> None:
    tested = {"kombu": "5.7.0", "pip": "23", "click": "8.5.1", "only-here": "1"}
    newest = {"kombu": "5.8.0", "pip": "26", "click": "8.5.1", "only-there": "1"}
    assert differences(tested, newest) == ["kombu 5.7.0 -> 5.8.0"]
    assert differences(tested, tested) == []
