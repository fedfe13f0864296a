"""``flatfold serve``: options, and a real process that answers, keeps its token and ends when it is told to."""

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

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import flatfold as ff
from flatfold.cli.serve import TOKEN, _hosts, serve
from flatfold.models.factory import make_model
from flatfold.models.images import ArrayImages
from tests.uncovered import environment

app = typer.Typer(rich_markup_mode=None)
app.command()(serve)
RUN = "import typer; from flatfold.cli.serve import serve; typer.run(serve)"
SECRET = "a-very-secret-token-of-mine"
NETS = """
import time
from pathlib import Path
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        while Path("hold").exists():
            Path("held").touch()
            time.sleep(0.01)
        return super().forward(x)

def tiny():
    return Slow(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
"""
MODEL = ("--model", "nets:tiny", "--weights", "tiny.pt")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def pixels(n, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 100, (n, 4, 4), dtype=np.uint8), np.arange(n) % 3
    x[np.arange(n), 0, y] = 255
    return x, y


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder: a network, its weights, two guards (one knows its transform), an image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN, raising=False)
    (tmp_path / "nets.py").write_text(NETS)
    model = make_model("nets:tiny", tmp_path, seed=5)
    torch.save(model.state_dict(), "tiny.pt")
    images = ArrayImages(*pixels(200), ff.Transform(mode="L", mean=(0.4,), std=(0.3,)))
    ff.Guard.fit(model, images, "fold", 0.1).save("guard.safetensors")
    ff.Guard.fit(model, list(images), "fold", 0.1).save("blind.safetensors")
    Path("names.txt").write_text("ant\nbee\ncat\n")
    Path("token").write_text(SECRET + "\n")
    Path("token").chmod(0o600)
    Image.fromarray(pixels(1, seed=2)[0][0]).save("a.png")
    return tmp_path


@pytest.fixture
def served(monkeypatch):
    """What the command would serve: (app, socket, access log), instead of serving it."""
    kept = []
    monkeypatch.setattr("flatfold.serve.run.run", lambda *arguments: kept.append(arguments) or True)
    return kept


def settings_of(served):
    return served[-1][0].state.service.settings


def test_a_guard_and_its_model_are_served_with_what_the_options_say(folder, served):
    done = run(
        *("guard.safetensors", *MODEL, "--port", 0, "--fpr", 0.2, "--names", "names.txt", "--token-file", "token"),
        *("--max-batch", 3, "--max-waiting", 5, "--max-body", 0.5, "--max-images", 7, "--max-pixels", 99),
        *("--timeout", 2.5, "--allow-host", "Guard.LAN", "--allow-origin", "https://example.org", "--access-log"),
    )
    assert done.exit_code == 0, done.output
    service, settings = served[0][0].state.service, settings_of(served)
    assert service.scorer.names == ("ant", "bee", "cat")
    assert service.scorer.facts()["fpr"] == 0.2
    assert service.scorer.transform == ff.Transform(mode="L", mean=(0.4,), std=(0.3,))
    assert (settings.max_batch, settings.max_waiting, settings.max_body) == (3, 5, 500_000)
    assert (settings.max_images, settings.max_pixels, settings.timeout) == (7, 99, 2.5)
    assert settings.hosts == {"localhost", "127.0.0.1", "[::1]", "guard.lan"}
    assert settings.origins == {"https://example.org"}
    assert settings.token == SECRET
    assert served[0][2] is True
    line = r"fold at a false-alarm rate of 0.2, for images and features, at http://127.0.0.1:\d+, with a token\n"
    assert re.fullmatch(line, done.stdout)
    assert done.stderr == ""


def test_without_a_model_features_are_served(folder, served):
    done = run("blind.safetensors", "--port", 0)
    assert done.exit_code == 0, done.output
    assert ", for features, at http://127.0.0.1:" in done.stdout
    assert done.stdout.endswith(", without a token\n")
    assert served[0][0].state.service.scorer.transform is None
    assert served[0][2] is False
    assert settings_of(served).token is None


def test_a_guard_without_a_transform_takes_it_from_options(folder, served):
    prepared = ("--mode", "L", "--mean", "0.4", "--std", "0.3", "--resize", 4, "--crop", 4)
    assert run("blind.safetensors", *MODEL, "--port", 0, *prepared).exit_code == 0
    wanted = ff.Transform(mode="L", mean=(0.4,), std=(0.3,), resize=4, crop=4)
    assert served[0][0].state.service.scorer.transform == wanted


def test_the_token_comes_from_the_environment_or_a_file_which_wins(folder, served, monkeypatch):
    monkeypatch.setenv(TOKEN, "another-token-of-the-environment")
    assert run("guard.safetensors", "--port", 0).exit_code == 0
    assert settings_of(served).token == "another-token-of-the-environment"
    assert run("guard.safetensors", "--port", 0, "--token-file", "token").exit_code == 0
    assert settings_of(served).token == SECRET


def test_beyond_this_machine_without_a_token_there_is_a_note(folder, served):
    done = run("guard.safetensors", "--host", "0.0.0.0", "--port", 0)
    assert done.exit_code == 0
    assert done.stderr == "note: everybody who reaches 0.0.0.0 can use this service: there is no --token-file\n"
    assert settings_of(served).hosts is None
    done = run("guard.safetensors", "--host", "0.0.0.0", "--port", 0, "--token-file", "token", "--allow-host", "a.lan")
    assert done.stderr == ""
    assert settings_of(served).hosts == {"localhost", "127.0.0.1", "[::1]", "0.0.0.0", "a.lan"}


def test_a_service_goes_by_the_address_that_it_was_started_with(folder, served):
    done = run("guard.safetensors", "--host", "127.0.0.2", "--port", 0)
    assert "at http://127.0.0.2:" in done.stdout
    assert "127.0.0.2" in settings_of(served).hosts
    assert _hosts("FD00::7%eth0", ["a.lan"]) >= {"[fd00::7]", "a.lan"}


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of files")
def test_a_token_that_everybody_can_read_gets_a_note(folder, served):
    Path("token").chmod(0o644)
    done = run("guard.safetensors", "--port", 0, "--token-file", "token")
    assert done.exit_code == 0
    assert done.stderr == "note: everybody on this machine can read token. Try: chmod 600 token\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("guard.safetensors", *MODEL, "--crop", "4"), r"says how images are prepared, .* Leave out --crop"),
        (
            ("blind.safetensors", *MODEL),
            r"blind.safetensors does not say how images are prepared. Say it with --resize",
        ),
        (("guard.safetensors", "--weights", "tiny.pt"), r"--weights is about images, .* no --model. Add it, or leave"),
        (("guard.safetensors", "--mode", "L"), r"--mode is about images, which need a network"),
        (("guard.safetensors", "--names", "token"), r"names must be one per class, 3 in all, got 1"),
        (
            ("guard.safetensors", "--names", "gap.txt"),
            r"gap.txt must have the name of a class in each line, but line 2",
        ),
        (("guard.safetensors", "--token-file", "names.txt"), r"a token must have at least 16 characters"),
        (("guard.safetensors", "--token-file", "nothing"), r"No such file"),
        (("guard.safetensors", "--fpr", "0.0001"), r"a false-alarm rate of 0.0001 takes"),
        (("guard.safetensors", "--model", "nets:tiny"), r"other weights"),
        (("guard.safetensors", "--device", "nowhere"), r"device 'nowhere' cannot be used here"),
        (("guard.safetensors", "--host", "192.0.2.1"), r"192.0.2.1 has no port 8000 for a service"),
        (("guard.safetensors", "--timeout", "0"), r"timeout must be a number of seconds above 0"),
        (("guard.safetensors", "--max-body", "0"), r"--max-body is a number of megabytes above 0, got 0"),
        (("guard.safetensors", "--allow-origin", "*"), r"an origin is a scheme and a host"),
        (("guard.safetensors", "--allow-host", "a:80"), r"a host is a name or an address"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments, sentence, folder, served):
    Path("gap.txt").write_text("ant\n\ncat\n")
    done = run(*arguments)
    assert done.exit_code == 1
    with pytest.raises((ValueError, OSError), match=sentence):
        raise done.exception
    assert not served


def test_what_is_not_installed_is_said(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("guard.safetensors")
    with pytest.raises(ModuleNotFoundError, match=r"needs fastapi, which is not installed. Install flatfold\[serve\]"):
        raise done.exception


def test_help_teaches_with_an_example_and_knows_no_option_for_the_token_itself():
    text = " ".join(run("--help").stdout.split())
    assert "Example: flatfold serve guard.safetensors --model nets:resnet20" in text
    assert "--token-file" in text
    assert "--token " not in text


@contextmanager
def process(*arguments, **variables):
    """Run the command, and yield it with the port that it says."""
    command = [sys.executable, "-c", RUN, *map(str, arguments), "--port", "0"]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(OMP_NUM_THREADS="1", **variables), **piped) as running:
        try:
            line = running.stdout.readline()
            assert "http://127.0.0.1:" in line, running.stderr.read()
            running.said = line
            yield running, int(line.split("http://127.0.0.1:")[1].split(",")[0])
        finally:
            with suppress(OSError):
                running.kill()


def ask(port, method, path, body=None, **headers):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = link.getresponse()
    status, got = answer.status, (str(answer.getheaders()), answer.read().decode())
    link.close()
    return status, got


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_running_request_is_answered_after_the_signal_and_the_process_ends_well(folder, sign):
    with process("guard.safetensors", *MODEL, "--timeout", 30) as (running, port):
        Path("hold").touch()
        answers = []
        body = Path("a.png").read_bytes()
        asking = threading.Thread(
            target=lambda: answers.append(ask(port, "POST", "/score", body, Content_Type="image/png"))
        )
        asking.start()
        wait_for(Path("held").exists)
        running.send_signal(sign)
        time.sleep(0.5)
        assert running.poll() is None
        Path("hold").unlink()
        asking.join(60)
        status, (_, text) = answers[0]
        assert (status, len(json.loads(text)["rows"])) == (200, 1)
        assert running.wait(30) == 0
        assert running.stderr.read() == ""
        assert running.stdout.read() == ""


@pytest.mark.parametrize("signals", [1, 2])
def test_a_network_that_never_ends_does_not_keep_the_process(folder, signals):
    with process("guard.safetensors", *MODEL, "--timeout", 1) as (running, port):
        Path("hold").touch()
        body = Path("a.png").read_bytes()
        asking = threading.Thread(target=lambda: ask(port, "POST", "/score", body, Content_Type="image/png"))
        asking.start()
        wait_for(Path("held").exists)
        asking.join(60)  # it is told after a second that it takes too long
        for _ in range(signals):
            running.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert running.wait(20) == 1
        assert "did not come to an end and was cut off" in running.stderr.read()


def test_the_token_is_needed_and_shown_nowhere(folder):
    with process("guard.safetensors", "--access-log", "--token-file", "token") as (running, port):
        seen = [running.said, " ".join(Path(f"/proc/{running.pid}/cmdline").read_text().split("\0"))]
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            for path in ("/", "/score", "/stream", "/metrics", "/nothing"):
                status, got = ask(port, method, path, Authorization=f"Bearer {SECRET[:-1]}")
                assert status == 401
                seen += got
        assert ask(port, "GET", "/healthz")[0] == 200
        for path in ("/", "/stream", "/metrics", "/nothing"):
            status, got = ask(port, "GET", path, Authorization=f"Bearer {SECRET}")
            assert status in (200, 404)
            seen += got
        running.terminate()
        assert running.wait(30) == 0
        out, err = running.stdout.read(), running.stderr.read()
        assert '"GET /stream HTTP/1.1" 200' in out
    assert not any(SECRET in text or SECRET[:-1] in text for text in (*seen, out, err))
    assert str(folder) not in "".join(seen[2:])


def test_the_token_of_the_environment_counts_and_no_line_is_printed_for_a_request(folder):
    with process("guard.safetensors", **{TOKEN: SECRET}) as (running, port):
        assert ask(port, "GET", "/stream")[0] == 401
        assert ask(port, "GET", "/stream", Authorization=f"Bearer {SECRET}")[0] == 200
        assert ask(port, "POST", "/score", b"x" * 99, Authorization=f"Bearer {SECRET}")[0] == 415
        running.terminate()
        assert running.wait(30) == 0
        assert (running.stdout.read(), running.stderr.read()) == ("", "")
