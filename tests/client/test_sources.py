"""Files, folders, services and starter tables; real sockets throughout."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import time
import zlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.client.cache import LastKnownGood
from autotune.client.snapshot import hand_over, take_over
from autotune.client.sources import from_path, resolve
from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Miss
from autotune.vocabulary.wire import encode_tables
from tests.client.servers import Script, endless, http_service, raw_server, silent, trickle
from tests.factories import make_published, make_table

GPU = "NVIDIA_H200"


def settings(tmp_path: Path, **changes: Any) -> Settings:
    return Settings(**{"cache": tmp_path / "cache", "timeout_s": 5.0, **changes})


def body() -> dict[str, Any]:
    return encode_tables([make_published(revision=3)])


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    table = make_table()
    file = write(tmp_path / "a.json", table.to_json_data())
    assert [t.table for t in from_path(file).tables] == [table]
    write(tmp_path / "b.json", body())
    both = from_path(tmp_path)
    assert [t.revision for t in both.tables] == [None, 3]
    assert both.miss is None


def test_a_broken_file_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    write(tmp_path / "good.json", make_table().to_json_data())
    write(tmp_path / "bad.json", {**make_table().to_json_data(), "margin": 0.5})
    found = from_path(tmp_path)
    assert len(found.tables) == 1
    assert found.miss is None
    assert "bad.json" in found.reasons[0]
    assert "does not match its content" in found.reasons[0]


@pytest.mark.parametrize("field", ["evidence", "routing", "driver"])
def test_half_a_character_breaks_one_table_alone(tmp_path: Path, field: str) -> None:
    write(tmp_path / "good.json", make_table().to_json_data())
    data = make_table().to_json_data()
    at = {"evidence": data["routes"][0], "routing": data, "driver": data["recording"]}[field]
    at[field] = ["\ud800"] if field == "evidence" else "\ud800"
    write(tmp_path / "half.json", data)
    write(tmp_path / "half-in-a-list.json", {"tables": ["\ud800"], "digest": "\ud800"})
    found = from_path(tmp_path)
    assert [t.table for t in found.tables] == [make_table()]
    assert found.miss is None
    assert [reason.split(":")[0] for reason in found.reasons] == ["half-in-a-list.json", "half.json"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "null", "[" * 100_000, '{"tables": 1}', "\ud800".encode("utf-8", "surrogatepass")],
)
def test_a_file_of_anything_else_is_broken(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = from_path(path)
    assert (found.tables, found.miss) == ((), Miss.BROKEN_TABLE)
    assert len(found.reasons) == 1
    assert found.why.endswith(".")
    assert not found.why.endswith("..")


def test_an_explicit_file_wins_even_when_it_is_missing(tmp_path: Path) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        found = resolve(settings(tmp_path, table=tmp_path / "absent.json", url=url), GPU, {})
    assert found.miss is Miss.BROKEN_TABLE
    assert script.requests == []


def test_a_service_is_asked_for_the_gpu_and_the_channel(tmp_path: Path) -> None:
    script = Script()
    tag = f'W/"{body()["digest"]}-gzip"'
    script.says(body(), etag=tag)
    with http_service(script) as url:
        found = resolve(settings(tmp_path, url=url + "/", channel="canary"), GPU, {})
        assert [t.revision for t in found.tables] == [3]
        ((path, headers),) = script.requests
        assert path == "/routing/tables?channel=canary&gpu=NVIDIA_H200"
        assert "if-none-match" not in headers
        script.status, script.body = 304, b""
        again = resolve(settings(tmp_path, url=url + "/", channel="canary"), GPU, {})
        assert script.requests[1][1]["if-none-match"] == tag
    assert again.digest == found.digest
    assert again.source == url


@pytest.mark.parametrize(
    "tag",
    ['"{0}\xe9"', '"{0}" ', '"{0}\t"', '"{0}"x', "{0}", '"other"', '""', '"{0}' + "x" * 600 + '"'],
)
def test_a_tag_that_cannot_be_sent_or_names_another_answer_is_not_kept(tmp_path: Path, tag: str) -> None:
    script = Script()
    script.says(body(), etag=tag.format(body()["digest"]))
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        resolve(here, GPU, {})
        script.says(encode_tables([make_published(revision=4)]))
        found = resolve(here, GPU, {})
    unusable = tag != '"{0}" '  # white space around a header's value is no part of it
    assert ("if-none-match" not in script.requests[1][1]) is unusable
    assert (found.source, [t.revision for t in found.tables], found.reasons) == (url, [4], ())


def test_a_tag_in_the_stored_answer_is_checked_too(tmp_path: Path) -> None:
    script = Script()
    script.says(body(), etag=f'"{body()["digest"]}"')
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        resolve(here, GPU, {})
        path = LastKnownGood(here.cache, url, GPU, "stable").path
        for tag in ('"a\xe9"', '"' + "0" * 64 + '"', "x\r\ny: z", 7, None):
            path.write_text(json.dumps({**json.loads(path.read_text()), "etag": tag}))
            script.says(encode_tables([make_published(revision=4)]))
            assert [t.revision for t in resolve(here, GPU, {}).tables] == [4], tag
            assert "if-none-match" not in script.requests[-1][1]
            script.says(body())
            resolve(here, GPU, {})


def test_not_modified_answers_nothing_that_was_not_asked(tmp_path: Path) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        resolve(here, GPU, {})
        script.status, script.body = 304, b""
        found = resolve(here, GPU, {})
    assert "last known good of" in found.source
    assert "HTTP 304 to a request that named no version" in found.reasons[0]


def test_the_last_known_good_serves_when_the_service_is_gone(tmp_path: Path) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        good = resolve(here, GPU, {})
    gone = resolve(here, GPU, {})
    assert gone.digest == good.digest
    assert "last known good of" in gone.source
    assert "gave no usable answer" in gone.reasons[0]
    assert resolve(here, "NVIDIA_H100", {}).miss is Miss.UNREACHABLE, "another GPU's answer was used"


@pytest.mark.parametrize(
    ("saved_at", "said"),
    [
        ("2076-01-01T00:00:00+00:00", True),
        ("2001-01-01T00:00:00+00:00", False),
        ("2076-01-01", False),
        (None, False),
    ],
)
def test_a_clock_that_was_set_back_is_said_and_decides_nothing(
    tmp_path: Path, saved_at: str | None, said: bool
) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        good = resolve(here, GPU, {})
    (path,) = (tmp_path / "cache" / "tables").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "saved_at": saved_at}))
    found = resolve(here, GPU, {})
    assert found.digest == good.digest
    assert [reason for reason in found.reasons if "ahead of this machine's clock" in reason] == (
        [f"what serves was kept at {saved_at}, ahead of this machine's clock"] if said else []
    )


@pytest.mark.parametrize("in_code", [True, False])
def test_what_is_kept_lies_in_the_xdg_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_code: bool
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("AUTOTUNE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    script = Script()
    script.says(body())
    with http_service(script) as url:
        asked = Settings(url=url) if in_code else Settings.from_env({**os.environ, "AUTOTUNE_URL": url})
        assert len(resolve(asked, GPU, {}).tables) == 1
    assert len(list((tmp_path / "xdg" / "moe-autotune" / "tables").iterdir())) == 1
    assert list((tmp_path / "work").iterdir()) == []
    again = resolve(asked, GPU, {})
    assert len(again.tables) == 1
    assert "last known good" in again.source


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_failing_service_counts_as_gone(tmp_path: Path, status: int) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        resolve(here, GPU, {})
        script.status = status
        found = resolve(here, GPU, {})
    assert len(found.tables) == 1
    assert f"it answered HTTP {status}" in found.reasons[0]


def test_none_and_an_empty_list_are_final(tmp_path: Path) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        resolve(here, GPU, {})
        none = make_published(revision=4).model_copy(update={"table": None})
        script.says(encode_tables([none]))
        found = resolve(here, GPU, {})
        assert [(t.revision, t.table) for t in found.tables] == [(4, None)]
        script.says(encode_tables([]))
        assert resolve(here, GPU, {}).tables == ()
    assert resolve(here, GPU, {}).tables == (), "the last known good is the empty list"


def test_a_refusal_is_final_too(tmp_path: Path) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        resolve(here, GPU, {})
        script.status, script.body = 404, b"no such page"
        found = resolve(here, GPU, {})
    assert (found.tables, found.miss) == ((), Miss.UNREACHABLE)
    assert "was reached, but answered HTTP 404: no such page" in found.reasons[0]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def lie(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "digest": "0" * 64}).encode()


def change(data: bytes) -> bytes:
    return data.replace(b'"margin": 0.01', b'"margin": 0.02')


@pytest.mark.parametrize(
    "spoil", [cut, lie, change, lambda _: b"[]", lambda _: b"\xff", lambda _: b"[" * 100_000]
)
def test_a_spoilt_answer_is_never_applied_in_part(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    script = Script()
    script.says(body())
    script.body = spoil(script.body)
    with http_service(script) as url:
        found = resolve(settings(tmp_path, url=url), GPU, {})
    assert (found.tables, found.miss) == ((), Miss.BROKEN_TABLE)
    assert not LastKnownGood(tmp_path / "cache", url, GPU, "stable").path.exists()


def test_a_table_of_a_later_schema_is_left_out_alone(tmp_path: Path) -> None:
    script = Script()
    script.says(with_one_of_a_later_schema())
    with http_service(script) as url:
        found = resolve(settings(tmp_path, url=url), GPU, {})
    assert [t.revision for t in found.tables] == [3]
    assert "schema 2" in found.reasons[0]


def with_one_of_a_later_schema(position: int = 1) -> dict[str, Any]:
    listed = encode_tables([make_published(revision=3), make_published(revision=4)])["tables"]
    listed[position]["table"]["schema_version"] = 2
    return {"tables": listed, "digest": content_digest(listed)}


def listing(*items: object) -> dict[str, Any]:
    return {"tables": list(items), "digest": content_digest(list(items))}


@pytest.mark.parametrize(
    "answer", [with_one_of_a_later_schema(0), with_one_of_a_later_schema(1), listing(1), listing({})]
)
def test_an_answer_that_cannot_be_read_whole_is_not_kept(tmp_path: Path, answer: dict[str, Any]) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        good = resolve(here, GPU, {})
        script.says(answer)
        found = resolve(here, GPU, {})
    assert "is not kept for later: not all of its tables can be read" in found.reasons[-1]
    gone = resolve(here, GPU, {})
    assert (gone.digest, [t.revision for t in gone.tables]) == (good.digest, [3])


SECRET = "s3cret-Word"


@pytest.mark.parametrize(
    "form",
    ["http://me:{0}@{1}", "http://{0}@{1}", "http://me:{0}@", "http://me:{0}@[", "http://me:{0}/x@{1}",
     "me:{0}@{1}", "ftp://me:{0}@{1}"],
)  # fmt: skip
def test_a_password_in_the_address_is_never_shown(tmp_path: Path, form: str) -> None:
    found = resolve(settings(tmp_path, url=form.format(SECRET, "127.0.0.1:1")), GPU, {})
    assert found.miss is Miss.UNREACHABLE
    assert SECRET not in f"{found.source} {found.reasons}"
    assert "***@" in found.source


def test_a_password_is_sent_and_kept_out_of_every_file_and_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url.replace("//", f"//me:{SECRET}@"))
        found = resolve(here, GPU, {})
        env: dict[str, str] = {}
        assert hand_over(found, here, env) is None
        assert take_over(here, env)[0] is not None
        script.status, script.body = 404, b"no"
        refused = resolve(here, GPU, {})
    assert len(found.tables) == 1
    assert script.requests[0][1]["authorization"] == f"Basic {b64encode(f'me:{SECRET}'.encode()).decode()}"
    written = "".join(file.read_text() for file in (tmp_path / "cache").rglob("*.json"))
    assert "***@127.0.0.1" in written
    for text in (written, caplog.text, f"{found.source} {refused.source} {refused.reasons}"):
        assert SECRET not in text


@pytest.mark.parametrize("channel", ["st\udcff", "Stable", "", "a" * 64, "a b"])
def test_a_name_that_no_channel_has_is_a_reason(tmp_path: Path, channel: str) -> None:
    script = Script()
    with http_service(script) as url:
        found = resolve(settings(tmp_path, url=url, channel=channel), GPU, {})
    assert found.miss is Miss.UNREACHABLE
    assert "is no channel name" in found.reasons[0]
    assert script.requests == []


@pytest.mark.parametrize("behave", [silent, trickle])
def test_the_time_limit_holds_for_everything(tmp_path: Path, behave: Any) -> None:
    with raw_server(behave) as url:
        started = time.monotonic()
        found = resolve(settings(tmp_path, url=url, timeout_s=0.5), GPU, {})
        took = time.monotonic() - started
    assert found.miss is Miss.UNREACHABLE
    assert took < 1.0


def test_a_body_without_end_is_cut_off(tmp_path: Path) -> None:
    with raw_server(endless) as url:
        found = resolve(settings(tmp_path, url=url, timeout_s=20), GPU, {})
    assert found.miss is Miss.UNREACHABLE
    assert "exceeds 32 MiB" in found.reasons[0]


def deflate(data: bytes, window: int = zlib.MAX_WBITS) -> bytes:
    packing = zlib.compressobj(9, zlib.DEFLATED, window)
    return packing.compress(data) + packing.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP, identity", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", deflate),
        ("deflate", lambda data: deflate(data, -zlib.MAX_WBITS)),
        ("identity", bytes),
    ],
)
def test_an_answer_may_be_packed_once(tmp_path: Path, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    script = Script()
    script.says(body(), content_encoding=encoding)
    script.body = pack(script.body)
    with http_service(script) as url:
        found = resolve(settings(tmp_path, url=url), GPU, {})
    assert (found.reasons, [t.revision for t in found.tables]) == ((), [3])
    assert script.requests[0][1]["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("encoding", "spoil", "said"),
    [
        (
            "gzip, gzip",
            lambda data: gzip.compress(gzip.compress(data)),
            "is packed as 'gzip, gzip'; only one",
        ),
        ("br", bytes, "is packed as 'br'; only one"),
        ("gzip", bytes, "is no gzip: Error -3"),
        ("deflate", bytes, "is no deflate: Error -3"),
        ("gzip", lambda data: gzip.compress(data)[:-9], "was cut off"),
    ],
)
def test_an_answer_that_is_packed_otherwise_is_refused(
    tmp_path: Path, encoding: str, spoil: Callable[[bytes], bytes], said: str
) -> None:
    script = Script()
    script.says(body(), content_encoding=encoding)
    script.body = spoil(script.body)
    with http_service(script) as url:
        found = resolve(settings(tmp_path, url=url), GPU, {})
    assert (found.tables, found.miss) == ((), Miss.UNREACHABLE)
    assert f"gave no usable answer: the answer {said}" in found.reasons[0]


def test_a_refusal_stays_final_however_its_page_is_packed(tmp_path: Path) -> None:
    script = Script()
    script.says(body())
    with http_service(script) as url:
        here = settings(tmp_path, url=url)
        resolve(here, GPU, {})
        script.status, script.body, script.headers = 404, b"\x1b\x00", {"content-encoding": "br"}
        found = resolve(here, GPU, {})
    assert (found.tables, found.miss) == ((), Miss.UNREACHABLE)
    assert "was reached, but answered HTTP 404: no text" in found.reasons[0]


@pytest.mark.parametrize(("answer", "layers"), [("200 OK", 1), ("200 OK", 2), ("302 Found", 1)])
def test_a_packed_answer_takes_no_more_memory_than_it_may_have(answer: str, layers: int) -> None:
    """In a process of its own, whose peak is its alone. A redirect's body counts too."""
    data = gzip.compress(bytes(1 << 28))
    for _ in range(layers - 1):
        data = gzip.compress(data)
    head = f"HTTP/1.1 {answer}\r\nlocation: /\r\ncontent-encoding: {', '.join(['gzip'] * layers)}\r\n"

    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)

    code = (
        "import httpx, resource, sys; from autotune.client.fetch import UnreachableError, get\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "httpx.Client().close(); before = peak()\n"
        "try: get(sys.argv[1], {}, {}, 60)\n"
        "except UnreachableError as error: print(peak() - before, error)"
    )
    with raw_server(behave) as url:
        done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True)
    mib, _, said = done.stdout.partition(" ")
    assert int(mib) < 100
    if answer.startswith("302"):
        assert "redirects more than 20 times" in said
    else:
        assert said.strip() == "the answer " + (
            "exceeds 32 MiB"
            if layers == 1
            else "is packed as 'gzip, gzip'; only one layer of gzip or deflate is unpacked"
        )


def test_a_redirect_is_followed_and_gets_no_password_of_another_host(tmp_path: Path) -> None:
    there, here = Script(), Script()
    there.says(body())
    with http_service(there) as target, http_service(here) as url:
        here.status, here.headers = 307, {"location": f"{target}/moved"}
        found = resolve(settings(tmp_path, url=url.replace("//", f"//me:{SECRET}@")), GPU, {})
    assert [t.revision for t in found.tables] == [3]
    assert "authorization" in here.requests[0][1]
    ((path, sent),) = there.requests
    assert path == "/moved"
    assert "authorization" not in sent


def test_certificates_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = tmp_path / "absent.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(absent))
    found = resolve(settings(tmp_path, url="https://127.0.0.1:1"), GPU, {})
    assert found.miss is Miss.UNREACHABLE
    assert f"SSL_CERT_FILE={absent} cannot be used: " in found.reasons[0]
    assert found.reasons[0].endswith("No such file or directory")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "nonsense", "http://[", "ftp://x", "http://no-such-host.invalid"]
)
def test_an_address_that_leads_nowhere(tmp_path: Path, url: str) -> None:
    found = resolve(settings(tmp_path, url=url, timeout_s=2), GPU, {})
    assert found.miss is Miss.UNREACHABLE
    assert found.reasons


def test_a_read_only_cache_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    script = Script()
    script.says(body())
    with http_service(script) as url:
        found = resolve(settings(tmp_path, url=url), GPU, {})
    assert len(found.tables) == 1
    assert "not kept for later" in found.reasons[-1]


def test_the_starter_tables_serve_only_without_a_source(tmp_path: Path) -> None:
    assert resolve(settings(tmp_path), GPU, {}).source == "starter"
    with raw_server(silent) as url:
        assert resolve(settings(tmp_path, url=url, timeout_s=0.2), GPU, {}).tables == ()


CONTROLS = "a\n\x1b[31m\r\x00\u202e\x85z"


def test_no_control_character_reaches_a_log(tmp_path: Path) -> None:
    script = Script(status=403, body=json.dumps({"detail": 1}).encode() + CONTROLS.encode())
    with http_service(script) as url:
        found = [resolve(settings(tmp_path, url=url), GPU, {})]
        script.says(body())
        resolve(settings(tmp_path, url=url), GPU, {})
        (path,) = (tmp_path / "cache" / "tables").iterdir()
        path.write_text(json.dumps({**json.loads(path.read_text()), "saved_at": CONTROLS}))
        script.status, script.body = 500, CONTROLS.encode()
        found.append(resolve(settings(tmp_path, url=url), GPU, {}))
        script.says({**body(), "digest": CONTROLS})
        found.append(resolve(settings(tmp_path, url=url), GPU, {}))
    name = CONTROLS.replace("\x00", "")
    folder = tmp_path / name
    folder.mkdir()
    write(folder / f"{name}.json", {name: name})
    found += [
        resolve(settings(tmp_path, table=path), GPU, {}) for path in (folder, tmp_path / f"absent{name}")
    ]
    env = {"AUTOTUNE_SNAPSHOT": str(folder / name), "AUTOTUNE_SNAPSHOT_DIGEST": "0" * 64}
    found.append(resolve(settings(tmp_path), GPU, env))
    assert len([each for each in found if each.reasons]) == len(found)
    for each in found:
        assert all(text.isprintable() for text in (each.source, *each.reasons, each.why)), each
        assert "[31m" in f"{each.source}{each.reasons}", each
