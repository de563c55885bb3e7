"""How tables and decisions read on a terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from autotune.cli.routing_views import print_decision
from autotune.cli.tables import render_static, render_table
from autotune.client import RoutingClient, Snapshot
from autotune.vocabulary.candidate import FlashinferCutlassCandidate
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.traffic import TrafficProfile
from tests.factories import H200, PROBLEM, make_published, make_table

TABLE = make_table(tokens=(8, 8192), baseline=FlashinferCutlassCandidate())


def printed(view: object) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def test_the_static_choice_says_which_of_the_two_is_faster() -> None:
    choice = TABLE.static_choice(TrafficProfile.concurrency(8))
    assert choice is not None
    assert choice.backend == "triton"
    second = min((us, name) for name, us in choice.total_us.items() if name != "triton")
    times = second[0] / choice.total_us["triton"]
    assert times > 1
    (row,) = (line for line in printed(render_static(TABLE, [8])).splitlines() if "triton" in line)
    assert f"{times:.3f}x as fast as {second[1]}" in row


def test_a_decision_says_what_the_times_of_the_static_choice_are_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = RoutingClient(Settings(), H200, snapshot=Snapshot((make_published(TABLE),), "test"))
    decision = client.route(PROBLEM, 8, concurrency=8)
    assert decision.static is not None
    print_decision(decision)
    text = " ".join(capsys.readouterr().out.split())
    assert "static choice for concurrency=8: triton (time of one layer over that traffic: " in text
    assert f"triton {decision.static.total_us['triton'] / 1000:.1f} ms" in text


def test_a_table_says_where_its_letters_are_explained() -> None:
    text = " ".join(printed(render_table(TABLE)).split())
    assert 'what the letters of a candidate mean: docs/measuring.md, "Reading a candidate"' in text
