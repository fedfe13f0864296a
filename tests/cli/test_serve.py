"""``flatfold serve``: options, and a process that answers, hides its token and ends when it is told to."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import flatfold as ff
from flatfold.cli.serve import TOKEN, _hosts
from tests.cli.images import MODEL, PREPARED, TRANSFORM
from tests.cli.running import assert_mistakes, succeed, words
from tests.command import flatfold, uncovered_environment

SECRET = "a-very-secret-token-of-mine"
SERVE = ("serve", "guard.safetensors", "--port", 0)


@pytest.fixture
def folder(here, monkeypatch):
    """The current folder: guards, their network, names of classes and a token."""
    monkeypatch.delenv(TOKEN, raising=False)
    Path("names.txt").write_text("ant\nbee\ncat\n")
    Path("token").write_text(SECRET + "\n")
    Path("token").chmod(0o600)
    return here


@pytest.fixture
def served(monkeypatch):
    """What the command would serve: (app, socket, access log), instead of serving it."""
    kept = []
    monkeypatch.setattr("flatfold.serve.server.run", lambda *arguments: kept.append(arguments) or True)
    return kept


def settings_of(served):
    return served[-1][0].state.service.settings


def test_options_reach_the_service(folder, served):
    done = succeed(
        *(*SERVE, *MODEL, "--fpr", 0.2, "--names", "names.txt", "--token-file", "token"),
        *("--max-batch", 3, "--max-waiting", 5, "--max-body", 0.5, "--max-images", 7, "--max-pixels", 99),
        *("--timeout", 2.5, "--allow-host", "Guard.LAN", "--allow-origin", "https://example.org", "--access-log"),
    )
    scorer, settings = served[0][0].state.service.scorer, settings_of(served)
    assert (scorer.names, scorer.facts()["fpr"], scorer.transform) == (("ant", "bee", "cat"), 0.2, TRANSFORM)
    assert (settings.max_batch, settings.max_waiting, settings.max_body) == (3, 5, 500_000)
    assert (settings.max_images, settings.max_pixels, settings.timeout) == (7, 99, 2.5)
    assert settings.hosts == {"localhost", "127.0.0.1", "[::1]", "guard.lan"}
    assert (settings.origins, settings.token, served[0][2]) == ({"https://example.org"}, SECRET, True)
    assert re.fullmatch(
        r"http://127.0.0.1:\d+ serves fold in front of nets:tiny, tiny.pt at a false-alarm rate of 0.2, for images and "
        r"features, with a token; runtime: .*\n",
        done.stdout,
    )
    assert (settings.guard, settings.model) == ("guard.safetensors", "nets:tiny, tiny.pt")
    assert done.stderr == ""


def test_a_guard_without_a_transform_serves_features_or_takes_it_from_options(folder, served):
    done = succeed("serve", "blind.safetensors", "--port", 0)
    assert re.fullmatch(r"http://127.0.0.1:\d+ serves fold at .*, for features, without a token\n", done.stdout)
    assert (served[0][0].state.service.scorer.transform, served[0][2], settings_of(served).token) == (None, False, None)
    done = succeed("serve", "blind.safetensors", *MODEL, "--port", 0, *PREPARED, "--resize", 4, "--crop", 4, "--json")
    assert json.loads(done.stdout)["address"].startswith("http://127.0.0.1:")
    wanted = ff.Transform(mode="L", mean=(0.4,), std=(0.3,), resize=4, crop=4)
    assert served[1][0].state.service.scorer.transform == wanted


def test_tokens_and_hosts(folder, served, monkeypatch):
    """The token of a file wins over that of the environment; other machines need one unless that is said."""
    for host in ("0.0.0.0", "::", "guard.lan"):
        refused = flatfold(*SERVE, "--host", host)
        assert (refused.returncode, "--no-token" in words(refused.stderr)) == (2, True), host
    assert flatfold(*SERVE, "--no-token", "--token-file", "token").returncode == 2
    assert served == []
    done = succeed(*SERVE, "--host", "0.0.0.0", "--no-token")
    assert ("note: anyone who can reach 0.0.0.0" in done.stderr, settings_of(served).hosts) == (True, None)
    monkeypatch.setenv(TOKEN, "another-token-of-the-environment")
    assert "http://127.0.0.2:" in succeed(*SERVE, "--host", "127.0.0.2").stdout
    assert settings_of(served).token == "another-token-of-the-environment"
    assert "127.0.0.2" in settings_of(served).hosts
    done = succeed(*SERVE, "--host", "0.0.0.0", "--token-file", "token", "--allow-host", "a.lan")
    assert (done.stderr, settings_of(served).token) == ("", SECRET)
    assert settings_of(served).hosts == {"localhost", "127.0.0.1", "[::1]", "0.0.0.0", "a.lan"}
    Path("token").chmod(0o644)
    done = succeed(*SERVE, "--token-file", "token")
    assert ("chmod 600" in done.stderr) is (os.name == "posix"), "everybody can read it"
    assert _hosts("FD00::7%eth0", ["a.lan"]) >= {"[fd00::7]", "a.lan"}


def test_mistakes(folder, served, monkeypatch):
    Path("gap.txt").write_text("ant\n\ncat\n")
    cases = [
        ([*MODEL, "--crop", "4"], 1, "--crop"),
        (["--weights", "tiny.pt"], 1, "--model"),
        (["--names", "token"], 1, "names"),
        (["--names", "gap.txt"], 1, "line 2"),
        (["--fpr", "0.0001"], 1, "0.0001"),
        (["--model", "nets:tiny"], 1, "other weights"),
        (["--host", "192.0.2.1", "--no-token"], 1, "192.0.2.1"),
        *(([f"--max-{what}", "0"], 2, f"--max-{what}") for what in ("body", "batch", "waiting", "images", "pixels")),
    ]
    assert_mistakes(SERVE, cases, folder)
    assert_mistakes(("serve", "blind.safetensors", *MODEL), [([], 1, "--resize")], folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert_mistakes(SERVE, [([], 1, "flatfold[serve]")], folder)
    assert not served
    assert "--token " not in flatfold("serve", "--help").stdout, "a token is not given on the command line"


@contextmanager
def process(*arguments):
    """Run the command, and yield it with the port that it says."""
    command = [sys.executable, "-m", "flatfold", *map(str, (*SERVE, *arguments))]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=uncovered_environment(OMP_NUM_THREADS="1"), **piped) as running:
        try:
            line = running.stdout.readline()
            found = re.match(r"http://127.0.0.1:(\d+) ", line)
            assert found, running.stderr.read()
            running.said = line
            yield running, int(found[1])
        finally:
            with suppress(OSError):
                running.kill()


def ask(port, method, path, body=None, **headers):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request(method, path, body, headers)
    answer = link.getresponse()
    status, got = answer.status, (str(answer.getheaders()), answer.read().decode())
    link.close()
    return status, got


@pytest.mark.parametrize("sign", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_running_request_is_answered_after_the_signal(folder, sign):
    answers = []
    body, kind = Path("photos/0000.png").read_bytes(), {"Content-Type": "image/png"}
    with process("--model", "nets:slow", "--weights", "tiny.pt", "--runtime", "torch", "--timeout", 30) as (
        running,
        port,
    ):
        Path("hold").touch()
        asking = threading.Thread(target=lambda: answers.append(ask(port, "POST", "/score", body, **kind)))
        asking.start()
        deadline = time.monotonic() + 60
        while not Path("held").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.send_signal(sign)
        time.sleep(0.5)
        assert running.poll() is None
        Path("hold").unlink()
        asking.join(60)
        status, (_, text) = answers[0]
        assert (status, len(json.loads(text)["rows"])) == (200, 1)
        assert running.wait(30) == 0
        assert (running.stdout.read(), running.stderr.read()) == ("", "")


def test_the_token_is_needed_and_shown_nowhere(folder):
    with process("--access-log", "--token-file", "token") as (running, port):
        seen = [running.said, " ".join(Path(f"/proc/{running.pid}/cmdline").read_text().split("\0"))]
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            for path in ("/", "/score", "/stream", "/metrics", "/nothing"):
                status, got = ask(port, method, path, Authorization=f"Bearer {SECRET[:-1]}")
                assert status == 401, (method, path)
                seen += got
        assert ask(port, "GET", "/stream")[0] == 401
        assert ask(port, "GET", "/healthz")[0] == 200
        for path, expected in (("/", 200), ("/stream", 200), ("/metrics", 200), ("/nothing", 404)):
            status, got = ask(port, "GET", path, Authorization=f"Bearer {SECRET}")
            assert status == expected, path
            seen += got
        running.terminate()
        assert running.wait(30) == 0
        out, err = running.stdout.read(), running.stderr.read()
    assert '"GET /stream HTTP/1.1" 200' in out
    assert not any(SECRET in text or SECRET[:-1] in text for text in (*seen, out, err))
    assert str(folder) not in "".join(seen[2:])
