"""`autotune lab outputs`: greedy completions of the arms, compared token by token."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.lab_plan import starter_table
from autotune.lab.outputs import Asked, Greedy, compare, complete, make_prompts
from autotune.lab.results import Folder
from autotune.lab.tables import read_table
from autotune.vocabulary.errors import AutotuneError, UsageError
from tests.lab.labs import ROOT, Lab, stand_in_plan


def greedy(*pairs: tuple[str, float]) -> Greedy:
    return Greedy(tuple(token for token, _ in pairs), tuple(logprob for _, logprob in pairs))


def test_log_probabilities_count_until_the_first_other_token() -> None:
    reference = [greedy(("a", -1.0), ("b", -2.0), ("c", -3.0)), greedy(("a", -1.0), ("a", -1.0), ("a", -1.0))]
    found = [greedy(("a", -1.02), ("x", -9.0), ("c", -8.0)), greedy(("a", -1.0), ("a", -1.05), ("b", -7.0))]
    difference = compare("all", "stock", found, reference, tolerance=0.1)
    assert (difference.differing_tokens, difference.tokens) == (2, 6)
    assert (difference.differing_prompts, difference.first) == (2, 1)
    assert difference.largest == pytest.approx(0.05)
    assert difference.within
    assert not compare("all", "stock", found, reference, tolerance=0.04).within
    same = compare("all", "stock", reference, reference, tolerance=0.0)
    assert (same.differing_tokens, same.first, same.largest, same.within) == (0, None, 0.0, True)


def test_completions_that_share_no_token_are_not_within_anything() -> None:
    reference, found = [greedy(("a", -1.0), ("b", -1.0))], [greedy(("x", -1.0), ("b", -1.0))]
    difference = compare("all", "stock", found, reference, tolerance=0.1)
    assert (difference.alike, difference.largest, difference.within) == (0, 0.0, False)
    assert "nothing of them can be compared" in str(difference)
    assert "tolerance" not in str(difference)


def test_the_prompts_of_both_are_compared_place_by_place() -> None:
    reference = [
        Greedy(("a",), (-1.0,), (-2.0, -3.0, -4.0), ("5", "6", "7")),
        Greedy(("a",), (-1.0,), (-5.0,), ("8",)),
    ]
    found = [
        Greedy(("a",), (-1.0,), (-2.5, -3.0, -4.1), ("5", "9", "7")),
        Greedy(("a",), (-1.0,), (-5.0,), ("8",)),
    ]
    difference = compare("all", "stock", found, reference, tolerance=0.1)
    assert (difference.read, difference.read_other) == (4, 1)
    assert difference.read_median == pytest.approx(0.05)
    assert difference.read_largest == pytest.approx(0.5)
    assert difference.within, "what they generated is the same"
    assert "The prompts' 4 tokens, which both read" in str(difference)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tolerance": float("nan")}, "--tolerance nan is no number"),
        ({"tolerance": -1.0}, "--tolerance -1 is no number"),
        ({"tolerance": float("inf")}, "--tolerance inf is no number"),
        ({"shortest": 9, "longest": 8}, "--shortest 9 is above --longest 8"),
        ({"prompts": 0}, "at least one each"),
    ],
)
def test_what_cannot_be_asked_is_bad_usage(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Asked(**given)
    assert Asked(tolerance=0.0).tolerance == 0


def test_a_tolerance_that_nothing_passes_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.open(stand_in_plan())
    command = [sys.executable, "-m", "autotune", "lab", "outputs", str(tmp_path), "--tolerance"]
    for value in ("nan", "-1"):
        done = subprocess.run([*command, value], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"--tolerance {value} is no number" in done.stderr
    assert not list((tmp_path / "logs").iterdir())


def test_prompts_are_words_of_the_model_and_the_same_for_every_arm() -> None:
    prompts = make_prompts(5, 3, 9, seed=1)
    assert prompts == make_prompts(5, 3, 9, seed=1) != make_prompts(5, 3, 9, seed=2)
    for prompt in prompts:
        words = prompt.split()
        assert 3 <= len(words) <= 9
        assert all(2 <= int(word[1:]) < 151936 for word in words)


def answer(prompt: Any, *logprobs: float) -> dict[str, Any]:
    told = {"tokens": ["a"] * len(logprobs), "token_logprobs": logprobs}
    return {"choices": [{"logprobs": told, "prompt_logprobs": prompt}]}


READ = [None, {"5": {"logprob": -1.0, "rank": 1}}]


@pytest.mark.parametrize(
    ("body", "left_out", "said"),
    [
        (answer(READ, -1.0, -2.0), 0, ""),
        (answer(READ, -1.0, -2.0), 9, "gave no completion: IncompleteRead"),
        ({"choices": []}, 0, "gave no completion"),
        (answer(["x", "y"], -1.0, -2.0), 0, "gave no completion"),
        (answer(None, -1.0, -2.0), 0, "gave no completion"),
        (answer([None], -1.0, -2.0), 0, "told nothing of the prompt's tokens"),
        (answer(READ, -1.0), 0, "1 of 2 tokens came back"),
        (answer(READ, -1.0, float("nan")), 0, "log probabilities that are not finite"),
    ],
)
def test_what_a_server_answers_instead_is_told_in_words(body: Any, left_out: int, said: str) -> None:
    """Args:
    left_out: bytes that the server promises and does not send.
    """

    class Server(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            sent = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(sent) + left_out))
            self.end_headers()
            self.wfile.write(sent)

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            if said:
                with pytest.raises(AutotuneError, match=said):
                    complete(address, "m", "p q", 2, 10.0)
            else:
                found = complete(address, "m", "p q", 2, 10.0)
                assert found == Greedy(("a", "a"), (-1.0, -2.0), (-1.0,), ("5",))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("env", "code", "tokens", "largest"),
    [
        ({}, 0, 0, 0.0),
        ({"STAND_IN_SHIFT": "0.05", "STAND_IN_OTHER": "6"}, 0, 2, 0.05),
        ({"STAND_IN_SHIFT": "0.2", "STAND_IN_METRICS": 'autotune_steps_total{tokens="1"} 1'}, 1, 0, 0.2),
    ],
)
def test_the_command_compares_served_completions(
    model: Path, tmp_path: Path, env: dict[str, str], code: int, tokens: int, largest: float
) -> None:
    plan = stand_in_plan({}, env)
    lab = Lab(tmp_path, model, plan)
    Folder(lab.folder).open(plan)
    (lab.folder / "starts").rmdir()  # as where nothing was measured, and the plan was put there by hand
    run = lab.start("outputs", "--prompts", "3", "--tokens", "8", "--json")
    text, _ = run.communicate(timeout=100)
    assert run.returncode == code, text
    (kept,) = json.loads((lab.folder / "outputs.json").read_text())
    assert (kept["arm"], kept["against"], kept["prompts"], kept["tokens"]) == ("fast", "stock", 3, 24)
    # Two of eight positions of each prompt carry another token.
    assert kept["differing_tokens"] == 3 * tokens
    assert kept["largest"] == pytest.approx(largest)
    assert kept["within"] is (code == 0)
    # Of three places one is the likeliest token itself, which the stand-in never shifts.
    shift = float(env.get("STAND_IN_SHIFT", "0"))
    assert kept["read"] > 3 * 30
    assert (kept["read_other"], kept["read_largest"]) == (0, pytest.approx(shift))
    assert kept["read_median"] == pytest.approx(shift)
    assert "tokens differ" in text


@pytest.mark.slow
def test_what_an_arm_answered_is_not_asked_again(model: Path, tmp_path: Path) -> None:
    """Killed after the first arm, an hour is not lost; and another tolerance needs no server."""
    counts = [tmp_path / f"{name}.count" for name in ("stock", "fast")]
    plan = stand_in_plan(*({"STAND_IN_COUNT": str(file)} for file in counts))
    lab = Lab(tmp_path, model, plan)
    folder = Folder(lab.folder)
    folder.open(plan)
    few = ("--prompts", "2", "--tokens", "4")

    def asked() -> list[int]:
        return [len(file.read_text()) for file in counts]

    started = lab.do_both("outputs", *few, "--start-at-once")
    assert started.index("starting fast") < started.index("stock is ready")
    assert asked() == [2, 2]
    # Other servers, each with the whole GPU: other answers, it may be.
    lab.do("outputs", *few)
    assert asked() == [4, 4]
    folder.completions(plan.arms[1]).write_text("{")
    said = lab.do_both("outputs", *few)
    assert "stock: the completions are there" in said
    assert asked() == [4, 6]
    lab.do("outputs", *few, "--tolerance", "0")
    assert asked() == [4, 6]
    lab.do("outputs", "--prompts", "2", "--tokens", "5")
    assert asked() == [6, 8]
    # Those of another machine count together, and not beside this one's.
    kept = [folder.completions(arm) for arm in plan.arms]
    for file in kept:
        file.write_text(file.read_text().replace('"boot": "', '"boot": "another'))
    lab.do("outputs", "--prompts", "2", "--tokens", "5")
    assert asked() == [6, 8]
    kept[0].unlink()
    lab.do("outputs", "--prompts", "2", "--tokens", "5")
    assert asked() == [8, 10]


def test_a_run_compares_outputs_while_its_servers_are_there(model: Path, tmp_path: Path) -> None:
    starts = {name: tmp_path / f"{name}.count" for name in ("stock", "fast")}
    envs = [{"STAND_IN_COUNT": str(file)} for file in starts.values()]
    plan = stand_in_plan(envs[0], {**envs[1], "STAND_IN_SHIFT": "0.2"}, points=stand_in_plan().points[:1])
    lab = Lab(tmp_path, model, plan)
    said = lab.do_both("run", "--outputs")
    assert "beyond the tolerance of 0.1" in said
    assert said.count("starting fast") == 1
    (kept,) = json.loads((lab.folder / "outputs.json").read_text())
    assert (kept["prompts"], kept["tokens"], kept["largest"]) == (16, 1024, pytest.approx(0.2))
    asked = [file.read_text() for file in starts.values()]
    assert "starting" not in lab.do_both("run", "--outputs")  # there is nothing left to do
    assert [file.read_text() for file in starts.values()] == asked
    one = {**plan.model_dump(), "servers": "one at a time"}
    lab.plan_file.write_text(json.dumps(one))
    assert "Run `autotune lab outputs`" in lab.do("run", "--outputs", fails=True)


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is not None, reason="the model can be written")
def test_a_folder_stays_as_it_was_where_no_model_can_be_written(tmp_path: Path) -> None:
    recorded = next((ROOT / "benchmarks" / "results").glob("*-serve-fp8_tensor"))
    folder = tmp_path / "lab"
    shutil.copytree(recorded, folder)
    plan = json.loads((folder / "plan.json").read_text())
    plan["table"] = read_table(starter_table("fp8_tensor")).digest  # the starter table of its day is another
    (folder / "plan.json").write_text(json.dumps(plan))
    before = sorted(folder.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "lab", "outputs", str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Writing the model needs tokenizers and transformers" in done.stderr
    assert sorted(folder.rglob("*")) == before
