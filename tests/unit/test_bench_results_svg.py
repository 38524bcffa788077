"""The SVG of the benchmarks with good, missing and extreme results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bench.figures import WANTED
from bench.results_svg import BARS_FROM, LABELS, LONGEST, UNIT, WIDTH, main, render_svg, times_as_good

SVG = "{http://www.w3.org/2000/svg}"


def results(**given: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(WANTED),
        **given,
        "notes": given.get("notes", {}),
        "raw": {
            "machine": {
                "measured_at": "2026-03-01T12:00:00+00:00",
                "processors": 2,
                "processor": "Fast <CPU> & Co",
                "system": "Linux",
                "python": "3.11.7",
                "postgresql": "18.4",
                "rabbitmq": "3.10.8",
                "outrider": "0.1.0",
                "load_at_start": 0.03,
            },
            "scale": "quick",
            "decode": {"java": "17.0.15"},
        },
    }


def drawn(given: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(render_svg(given))


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def bars(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [each for each in root.iter(f"{SVG}rect") if each.get("class") != "page"]


def test_every_result_has_a_label_in_words() -> None:
    assert set(LABELS) == set(WANTED)
    assert set(LABELS.values()) <= set(texts(drawn(results())))
    assert max(map(len, LABELS.values())) <= 40  # a longer label would be cut off on the left


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("relay_vs_django_celery_outbox", 30, 2.0),
        ("relay_vs_django_celery_outbox", 7.5, 0.5),
        ("latency_p50_vs_direct", 1, 2.0),
        ("latency_p50_vs_direct", 8, 0.25),
    ],
)
def test_a_longer_bar_is_better_for_both_kinds_of_results(key: str, value: float, expected: float) -> None:
    assert times_as_good(key, value) == expected
    (bar,) = bars(drawn(results(**{key: value})))
    assert float(bar.get("width", "0")) == UNIT * expected
    assert bar.get("class") == ("good" if expected >= 1 else "short")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("relay_vs_django_celery_outbox", 1e15),
        ("relay_rss_growth_mb_1m_rows", 0),
        ("relay_rss_growth_mb_1m_rows", -3.5),
        ("latency_p99_vs_direct", 1e12),
        ("worker_vs_raw_consume", 0),
    ],
)
def test_extreme_values_stay_inside_the_drawing(key: str, value: float) -> None:
    (bar,) = bars(drawn(results(**{key: value})))
    width = float(bar.get("width", "0"))
    assert 1 <= width <= UNIT * LONGEST
    assert BARS_FROM + width < WIDTH


def test_a_bar_that_is_cut_off_is_marked() -> None:
    assert "»" in texts(drawn(results(relay_vs_django_celery_outbox=1_000_000)))
    assert "1,000,000≥ 15" in texts(drawn(results(relay_vs_django_celery_outbox=1_000_000)))
    assert "»" not in texts(drawn(results(relay_vs_django_celery_outbox=30)))


def test_a_missing_result_shows_its_reason_and_no_bar() -> None:
    given = results(
        decode_vs_debezium=None, notes={"decode_vs_debezium": "no Java 17 here: <install> it & " + "x" * 200}
    )
    root = drawn(given)
    assert bars(root) == []
    (shown,) = (each for each in texts(root) if "no Java 17" in each)
    assert shown.startswith("not measured: no Java 17 here: <install> it & xxx")
    assert shown.endswith("…")
    whole = [each.text for each in root.iter(f"{SVG}title")]
    assert f"decode_vs_debezium: {given['notes']['decode_vs_debezium']}" in whole


def test_machine_versions_and_date_are_below() -> None:
    below = "\n".join(texts(drawn(results()))[-3:])
    for part in ("2 x Fast <CPU> & Co", "PostgreSQL 18.4", "RabbitMQ 3.10.8", "Python 3.11.7", "Java 17.0.15"):
        assert part in below
    assert "2026-03-01 12:00:00 UTC, quick run, smaller numbers than the names say, load at start 0.03" in below


def test_empty_results_can_be_drawn() -> None:
    root = drawn({})
    assert bars(root) == []
    assert len([each for each in texts(root) if each.startswith("not measured")]) == len(WANTED)


def test_the_command_writes_the_given_file(tmp_path: Path) -> None:
    source, target = tmp_path / "latest.json", tmp_path / "out.svg"
    source.write_text(json.dumps(results(decode_vs_debezium=float("nan"))))
    run = CliRunner().invoke(main, [str(source), str(target)])
    assert run.exit_code == 0, run.output
    ElementTree.fromstring(target.read_text(encoding="utf-8"))


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_invalid_results_file_is_a_one_line_error(tmp_path: Path, content: str | None) -> None:
    source = tmp_path / "latest.json"
    if content is not None:
        source.write_text(content)
    run = CliRunner().invoke(main, [str(source), str(tmp_path / "out.svg")])
    assert run.exit_code == 1
    assert run.output.startswith("Error: ")
    assert run.output.rstrip().endswith("`make bench` writes them")
    assert not (tmp_path / "out.svg").exists()
