"""The Dockerfile, and the examples that run its image: read here, because no test has a Docker daemon."""

import json
import re
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pytest
from typer.main import get_command

from flatfold.cli import app
from flatfold.cli.serve import TOKEN
from flatfold.serve.app import PUBLIC_PATH
from tests.serve.small_service import make_guard, running

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf8")
PORT = 8000
NETWORK = ["guard.safetensors", "--model", "nets:resnet20", "--weights", "resnet20.safetensors"]


def commands(name):
    """Return what follows an instruction of the Dockerfile, in each of its places."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def entry_point():
    (line,) = commands("ENTRYPOINT")
    return json.loads(line)


def read(name):
    return list(yaml.safe_load_all((ROOT / "examples" / name).read_text(encoding="utf8")))


def options_of(words):
    """Return the values of the options of `flatfold serve`, or raise as the command would."""
    return get_command(app).commands["serve"].make_context("serve", list(words)).params


def test_the_image_is_built_from_files_that_exist_and_reach_it():
    copied = [word for line in commands("COPY") if "--from" not in line for word in line.split()[:-1]]
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert {"README.md", "pyproject.toml", "src"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists()
        kept = [rule.startswith("!") for rule in ignored if fnmatch(name, rule.removeprefix("!"))]
        assert kept[-1], f"{name} is left out by .dockerignore"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (given,) = [line.partition("=") for line in commands("ARG")]
    assert given[0] == "EXTRAS"
    assert "serve" in given[2].split(",")
    assert set(given[2].split(",")) <= set(extras)
    assert any('".[$EXTRAS]"' in line for line in commands("RUN"))


def test_the_entry_point_and_the_examples_are_commands_of_the_service():
    (compose,), (deployment, service) = read("compose.yaml"), read("kubernetes.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    composed = compose["services"]["guard"]
    for words in (composed["command"], container["args"], NETWORK):
        options = options_of([*entry_point()[2:], *words])
        assert (options["host"], options["port"]) == ("0.0.0.0", PORT)
        assert (str(options["guard"]), options["model"]) == ("guard.safetensors", "nets:resnet20")
    assert commands("EXPOSE") == [str(PORT)]
    assert composed["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert set(composed["environment"]) == {each["name"] for each in container["env"]} == {TOKEN, "OMP_NUM_THREADS"}
    assert (ROOT / "examples" / composed["build"]["context"] / "Dockerfile").resolve() == ROOT / "Dockerfile"
    (http,), (user,) = container["ports"], commands("USER")
    assert (http["name"], http["containerPort"]) == ("http", PORT)
    assert deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": PUBLIC_PATH, "port": "http"}
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels


@contextmanager
def process(*words):
    """Run a process with these words on its command line, in place of the first one of a container."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdout.readline()  # the command line is there
        yield started.pid
        started.stdin.close()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc, as containers have it")
def test_the_health_check_asks_the_port_that_the_service_was_given():
    (line,) = commands("HEALTHCHECK")
    command = json.loads(line.partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]

    def check(*words):
        with process(*entry_point()[1:], *NETWORK, *words) as pid:
            code = command[2].replace("/proc/1/", f"/proc/{pid}/")
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
        return done.returncode, done.stderr

    with running(make_guard()) as service:
        for words in (("--port", str(service.port)), (f"--port={service.port}", "--json")):
            assert check(*words) == (0, "")
        service.service.closing = True
        status, error = check("--port", str(service.port))
        assert (status, "503" in error) == (1, True)
    status, error = check("--port", str(service.port))
    assert (status, "refused" in error) == (1, True)
