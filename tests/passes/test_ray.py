"""`run_on_ray`: what one process computes, digit for digit, even when workers or the whole run are killed."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import nan
from pathlib import Path
from socket import create_server
from threading import Thread
from types import SimpleNamespace
from uuid import uuid4

import numpy as np
import pytest
import torch

from flatfold import Execution, Guard, Loading, extract
from flatfold.cli.options import ModelOptions
from flatfold.data.images import ArrayImages, FolderImages
from flatfold.errors import UnreadableImageError
from flatfold.evaluate.banks import Settings
from flatfold.evaluate.runner import run
from flatfold.evaluate.study import run_study
from flatfold.evaluate.suites.suite import OodSet, Suite
from flatfold.io.store import Part
from flatfold.passes import ray as on_ray
from flatfold.passes import ray as ray_cluster
from flatfold.passes.local import run_local
from flatfold.passes.ray import Worker, run_on_ray
from flatfold.scoring import shards
from flatfold.scoring.guard_file import read_guard
from flatfold.scoring.shards import ScoringJob, Shard, join_tables, score_images
from tests.command import flatfold
from tests.ray_cluster import PATIENT, marked
from tests.ray_cluster import ray_cluster as started_cluster
from tests.scoring.shards.small_run import TRANSFORM, broken, write_guard, write_images

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'flatfold[ray]'")

BATCH, IMAGES = 4, 46
PARTS = {number: range(8 * number, min(8 * number + 8, IMAGES)) for number in range(6)}
NETS = """
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch import nn


def note(folder):
    Path(folder).mkdir(exist_ok=True)
    Path(folder, f"{os.getpid()}-{time.time_ns()}").touch()


def make():
    note("loads")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    model.register_forward_pre_hook(look_around)
    return model


def look_around(module, args):
    note("batches")
    while Path("hold").exists():
        time.sleep(0.01)
    if Path("slow").exists():
        time.sleep(0.3)
    if Path("raise").exists():
        raise RuntimeError(Path("raise").read_text())


def other():
    note("loads")
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 3))
"""
ONE_RAISES = """

def look_around(module, args):
    try:
        Path("busy").touch(exist_ok=False)
    except FileExistsError:
        raise RuntimeError("no more") from None
    time.sleep(60)
"""
DRIVER = """
import sys
from functools import partial
from math import nan
from pathlib import Path

import flatfold.scoring.shards as batch
from flatfold.data.images import FolderImages
from flatfold.cli.options import ModelOptions
from flatfold.data.transform import Transform
from flatfold.scoring.shards import ScoringJob, score_images
from flatfold.scoring.guard_file import read_guard
from flatfold.passes.ray import run_on_ray

if __name__ == "__main__":
    if len(sys.argv) > 2:
        import ray

        ray.init(runtime_env={"working_dir": sys.argv[2]}, num_cpus=2, include_dashboard=False, logging_level="error")
    batch.PART_ROWS, batch.PARTS = 8, 1
    source = FolderImages("images", Transform(mean=(0.5,) * 3, std=(0.25,) * 3), 4, labels=False)
    task = ScoringJob(read_guard(Path("guard.safetensors")), ModelOptions("nets:make").open, source)
    score_images(task, sys.argv[1], executor=partial(run_on_ray, actors=2))
"""


@pytest.fixture(scope="module")
def cluster():
    """Two CPUs on this machine, whatever other clusters there are."""
    with started_cluster():
        yield


def on_cluster(test):
    """Mark a test that needs the cluster. A busy machine takes minutes to start the workers, so it may wait long."""
    for mark in (pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(300)):
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A task whose every path is relative, in a folder where the cluster was not started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shards, "PART_ROWS", 8)
    monkeypatch.setattr(shards, "PARTS", 1)
    Path("nets.py").write_text(NETS)
    write_images(tmp_path / "images", IMAGES)
    broken("text", Path("images/0009.png"))
    broken("nothing", Path("images/0030.png"))
    make = ModelOptions("nets:make").open
    write_guard(Path("guard.safetensors"), make())
    clear()
    return ScoringJob(
        read_guard(Path("guard.safetensors")), make, FolderImages("images", TRANSFORM, BATCH, labels=False)
    )


def clear():
    """Forget which batches were looked at, and who has loaded a model."""
    for path in (*Path("batches").glob("*"), *Path("loads").glob("*")):
        path.unlink()


def workers(folder):
    """How often each process has made a note."""
    return Counter(int(path.name.partition("-")[0]) for path in Path(folder).glob("*"))


def until(condition, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def in_background(action):
    thread = Thread(target=action, daemon=True)
    thread.start()
    return thread


def noted(engine, numbers):
    """An engine that tells which parts it has given."""

    def scored(task, parts):
        for number, rows in engine(task, parts):
            numbers.append(number)
            yield number, rows

    return scored


def same_rows(one, two):
    assert one.info == two.info
    assert list(one.tensors) == list(two.tensors)
    for name, values in two.tensors.items():
        assert one.tensors[name].dtype == values.dtype
        assert torch.equal(one.tensors[name], values)


def same_files(one, two):
    for end in ("", ".summary.json", ".unreadable.csv"):
        assert Path(f"{one}{end}").read_bytes() == Path(f"{two}{end}").read_bytes()
    assert not Path(f"{one}.parts").exists()


def drive(mark, *arguments):
    """Start another process that scores on a cluster of its own."""
    environment = {**os.environ, **PATIENT, "RAY_ADDRESS": "local", "MARK": mark}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, "driver.py", *arguments], env=environment, **pipes)


@on_cluster
def test_parts_are_those_of_one_process_digit_for_digit_from_as_many_workers_as_cpus(task):
    expected = dict(run_local(task, PARTS))
    clear()
    Path("hold").touch()
    release = in_background(lambda: (until(lambda: len(workers("batches")) == 2), Path("hold").unlink()))
    scored = list(run_on_ray(task, PARTS))
    release.join()
    assert sorted(number for number, _ in scored) == list(PARTS)
    for number, rows in scored:
        same_rows(rows, expected[number])
    loads = workers("loads")
    assert sorted(loads.values()) == [1, 1]  # each model once
    assert os.getpid() not in loads


@on_cluster
def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost_or_comes_twice(task):
    score_images(task, "local.csv")
    clear()
    Path("hold").touch()
    killed, numbers = [], []

    def kill():
        until(lambda: len(workers("batches")) == 2)  # both are at work, and stay there
        killed.append(next(iter(workers("batches"))))
        os.kill(killed[0], signal.SIGKILL)
        Path("hold").unlink()

    killer = in_background(kill)
    summary = score_images(task, "ray.csv", executor=noted(partial(run_on_ray, actors=2), numbers))
    killer.join()
    assert workers("batches")[killed[0]] == 1
    assert sorted(numbers) == list(PARTS)
    same_files("ray.csv", "local.csv")
    assert (summary.scored, summary.unreadable) == (IMAGES - 2, 2)


@on_cluster
def test_a_shard_on_ray_and_one_of_a_process_join_to_one_run(task):
    score_images(task, "whole.csv")
    score_images(task, "1.csv", shard=Shard(1, 2))
    score_images(task, "2.csv", shard=Shard(2, 2), executor=partial(run_on_ray, actors=1))
    join_tables(["1.csv", "2.csv"], "joined.csv")
    same_files("joined.csv", "whole.csv")


@on_cluster
def test_a_killed_run_goes_on_quietly_and_leaves_no_process_whether_or_not_ray_sent_the_folder(task):
    score_images(task, "local.csv")
    clear()
    Path("driver.py").write_text(DRIVER)
    Path("slow").touch()
    mark = uuid4().hex
    run = drive(mark, "ray.csv", ".")  # workers have a copy of this folder
    until(lambda: len(list(Path("ray.csv.parts").glob("*.safetensors"))) >= 2)
    run.kill()
    until(lambda: not marked(mark, b"ray::Worker"))  # at once; Ray's agents may look for their cluster for a minute
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert not Path("ray.csv").exists()
    assert not workers("loads")  # their notes were made in the copy
    Path("slow").unlink()
    rest = drive(mark, "ray.csv")
    assert not rest.communicate()[0]
    assert rest.returncode == 0
    same_files("ray.csv", "local.csv")
    calls = sum(workers("batches").values()) - 3 * len(workers("batches"))  # each first checks the guard and the layout
    assert 0 < calls <= 12 - 4  # two parts of two batches were there
    until(lambda: not marked(mark))


@on_cluster
def test_workers_that_are_busy_when_a_run_ends_are_stopped_without_a_message(task):
    Path("driver.py").write_text(DRIVER)
    Path("nets.py").write_text(NETS + ONE_RAISES)
    run = drive(uuid4().hex, "ray.csv")
    printed = run.communicate()[0]
    assert "no more" in printed
    assert "retries" not in printed


@on_cluster
@pytest.mark.parametrize("when", ["loads", "scores"])
def test_what_a_worker_raises_comes_out_as_if_it_were_raised_here_and_at_once(task, when):
    if when == "loads":
        task = replace(task, model=ModelOptions("nets:other").open)
    else:
        Path("raise").write_text("no more")
    with pytest.raises((ValueError, RuntimeError)) as here:
        list(run_local(task, PARTS))
    clear()
    with pytest.raises(type(here.value)) as there:
        list(run_on_ray(task, PARTS, actors=1))
    assert type(there.value) is type(here.value)
    assert str(there.value) == str(here.value)
    assert len(workers("loads")) == 1  # nobody else tries; the same worker may have begun the next part meanwhile
    assert sum(workers("batches").values()) < len(PARTS)


def part_of(rows):
    return Part({"unreadable": {rows[0]: "broken"}}, {"row": torch.tensor(rows[1:])})


@pytest.fixture
def light(tmp_path, monkeypatch):
    """Let workers be processes that compute nothing, and begin soon; what they do is a function of the rows."""
    monkeypatch.chdir(tmp_path)

    def use(load=lambda task: None, score=lambda start: None):
        class Light(Worker):
            def load(self, reference):
                os.chdir(self.folder)
                Path(f"load-{os.getpid()}").touch()
                load(ray.get(reference))
                return self, None

            def part(self, loaded, rows):
                score(rows.start)
                return part_of(rows)

        monkeypatch.setattr(on_ray, "Worker", Light)

    return use


def loads():
    return len(list(Path().glob("load-*")))


class ParticularError(Exception):
    """One that cannot be made again from its words."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_error_comes_out_with_its_words_and_the_nearest_kind():
    for error, kind in (
        (ParticularError("this", "that"), Exception),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), ValueError),
        (PermissionError(13, "denied", "there"), OSError),
        (UnreadableImageError("a.png is cut"), UnreadableImageError),
    ):
        worker = Worker(None)
        worker.load = lambda _, error=error: (_ for _ in ()).throw(error)
        given = worker.compute([None], range(8))
        assert type(given) is kind
        assert str(given) == str(error)


MORTAL = """
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn


class Mortal(nn.Module):
    # The first call in a process that did not make the model ends that process, once.

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)
        self.home = os.getpid()

    def forward(self, x):
        if os.getpid() != self.home and Path("mortal").exists():
            with suppress(FileExistsError):
                Path("died").touch(exist_ok=False)
                os._exit(1)
        return self.head(self.body(x).relu().mean((2, 3)))
"""


@pytest.fixture
def mortal(tmp_path, monkeypatch):
    """Return a model whose class is in a module of the current folder, where workers find it too."""
    name = f"mortal_{uuid4().hex}"
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.py").write_text(MORTAL)
    monkeypatch.syspath_prepend(tmp_path)
    return import_module(name).Mortal


RAY = Execution(engine="ray", actors=2)


def bytes_of(folder):
    """The bytes of all parts and manifests under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@on_cluster
@pytest.mark.parametrize("dies", [False, True])
def test_a_bank_has_the_same_bytes_and_a_dead_worker_costs_nothing(tmp_path, monkeypatch, mortal, dies):
    monkeypatch.setattr("flatfold.passes.passes.PART_ROWS", 8)
    write_images(tmp_path / "images", IMAGES)
    broken("text", Path("images/0009.png"))
    source, loading = FolderImages("images", TRANSFORM, BATCH, labels=False), Loading(max_unreadable=0.1)
    extract(mortal(), source, out="local", shard_rows=6, loading=loading)
    if dies:
        Path("mortal").touch()
    bank, _ = extract(mortal(), source, out="ray", shard_rows=6, loading=loading, execution=RAY)
    assert Path("died").exists() == dies
    assert len(bank) == IMAGES - 1
    assert bytes_of(Path("ray")) == bytes_of(Path("local"))
    here = extract(mortal(), source, loading=loading)[0]
    assert torch.equal(extract(mortal(), source, loading=loading, execution=RAY)[0].features, here.features)


@on_cluster
def test_a_guard_that_was_fitted_on_ray_is_the_same_file(mortal):
    x = torch.randn(200, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    for name, execution in (("local", None), ("ray", RAY)):
        guard = Guard.fit(mortal(), x, method="msp", execution=execution)
        guard.save(f"{name}.safetensors")
    assert guard.fit_result.runtime.endswith("on Ray")
    assert Path("ray.safetensors").read_bytes() == Path("local.safetensors").read_bytes()


@on_cluster
def test_a_suite_and_a_study_have_the_figures_of_one_machine(mortal):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3

    def images(n, y=None):
        return ArrayImages(rng.integers(0, 256, (n, 6, 6, 3), dtype=np.uint8), y, TRANSFORM, BATCH)

    suite = Suite(
        "toy", "", mortal().eval(), images(60, labels), images(60, labels), images(60, labels),
        (OodSet("noise", "far", images(40), ""),), seed=0,
    )  # fmt: skip
    runs = {}
    for name, execution in (("local", Execution()), ("ray", RAY)):
        settings = Settings(execution=execution, replicates=0)
        results = run(suite, ["msp", "knn:k=5", "odin", "nac"], Path(name), settings)
        study = run_study(suite, Path(name), settings, samples=12, probes=1, steps=3)
        runs[name] = results.rows, results.refused, study.statistics, study.detections
        assert results.provenance["runtime"].endswith("on Ray") == (name == "ray")
    assert runs["ray"] == runs["local"]
    assert len(runs["ray"][0]) == 4
    kept = [{path: raw for path, raw in bytes_of(Path(name)).items() if "curvature" not in path} for name in runs]
    assert kept[0] == kept[1]


@on_cluster
def test_a_command_distributes_a_network_from_a_file(mortal, tmp_path):
    write_images(tmp_path / "images", IMAGES)
    Path("blocks.py").write_text("from torch import nn\n\n\nclass Body(nn.Flatten):\n    pass\n")
    nets = "import torch\nfrom torch import nn\nfrom blocks import Body\n\n\nclass Own(nn.Sequential):\n    pass\n\n\n"
    Path("nets.py").write_text(
        f"{nets}def make():\n    torch.manual_seed(0)\n    return Own(Body(), nn.Linear(108, 3))\n"
    )
    options = ("images", "--model", "nets:make", "--mode", "RGB", "--method", "msp", "--no-labels", "--fpr", 0.1)
    for name, engine in (("local", ()), ("ray", ("--engine", "ray", "--actors", 2))):
        done = flatfold("fit", *options, "--out", f"{name}.safetensors", *engine)
        assert done.returncode == 0, done.stderr
    assert "on Ray" in done.stdout
    assert Path("ray.safetensors").read_bytes() == Path("local.safetensors").read_bytes()


def test_only_data_that_can_be_read_from_any_row_is_distributed(mortal):
    with pytest.raises(ValueError, match="list"):
        extract(mortal(), [torch.zeros(2, 3, 6, 6)], execution=RAY)


LIGHT = SimpleNamespace(title="computing")  # a job for workers that compute nothing
DEAD = "died over part %s"


@on_cluster
def test_a_part_that_kills_every_worker_ends_the_run(light):
    light(score=lambda start: os._exit(1) if start == 16 else None)
    numbers = []
    with pytest.raises(RuntimeError, match=DEAD % 2):
        list(noted(partial(run_on_ray, actors=1), numbers)(LIGHT, PARTS))
    assert 2 not in numbers
    assert len(numbers) == len(set(numbers))
    assert loads() == on_ray.TRIES


@on_cluster
def test_workers_that_die_while_they_load_end_the_run(light):
    light(load=lambda task: os._exit(1))
    with pytest.raises(RuntimeError, match=DEAD % "[0-5]"):
        list(run_on_ray(LIGHT, PARTS, actors=1))
    assert loads() == on_ray.TRIES


@on_cluster
def test_all_parts_come_once_and_there_are_no_more_workers_than_cpus(light):
    light()
    scored = list(run_on_ray(LIGHT, PARTS, actors=4))
    assert sorted(number for number, _ in scored) == list(PARTS)
    for number, rows in scored:
        same_rows(rows, part_of(PARTS[number]))
    assert loads() <= 2


@on_cluster
def test_a_worker_goes_to_the_folder_computes_with_one_thread_and_scores_rows(task, tmp_path):
    torch.set_num_threads(2)
    os.chdir("/")
    rows = Worker(str(tmp_path)).compute([ray.put(task)], range(8, 16))
    assert Path.cwd() == tmp_path
    assert torch.get_num_threads() == 1
    same_rows(rows, dict(run_local(task, {1: PARTS[1]}))[1])


@on_cluster
def test_a_worker_that_does_not_see_the_folder_says_so(task):
    with pytest.raises(FileNotFoundError, match="/not/here"):
        Worker("/not/here").load(ray.put(task))


class FakeRay(SimpleNamespace):
    """What is asked of Ray, without a cluster."""

    def __init__(self, joined):
        super().__init__(calls=[], joined=joined)

    def is_initialized(self):
        return self.joined

    def init(self, **options):
        self.calls.append(("init", options))

    def shutdown(self):
        self.calls.append("shutdown")


def test_a_cluster_is_left_or_ended_whatever_happens(monkeypatch):
    fake = FakeRay(joined=False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(KeyboardInterrupt), ray_cluster.join_cluster():
        raise KeyboardInterrupt
    (name, options), end = fake.calls
    assert (name, end) == ("init", "shutdown")
    assert "address" not in options
    assert not options["include_dashboard"]
    assert not options["log_to_driver"]


def test_a_cluster_that_the_caller_has_joined_is_used_and_left(monkeypatch):
    fake = FakeRay(joined=True)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with ray_cluster.join_cluster() as used:
        assert used is fake
    assert fake.calls == []


def test_without_ray_the_error_says_how_to_install_it(task, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match="pip install"):
        next(run_on_ray(task, PARTS))


def test_an_address_where_nobody_listens_is_refused_at_once(monkeypatch):
    with create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    fake = FakeRay(joined=False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConnectionError, match=address), ray_cluster.join_cluster():
        pass
    assert fake.calls == []


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


def test_workers_need_a_cpu_and_their_gpus_on_one_machine():
    nodes = [
        node(CPU=4.0),
        node(CPU=3.0, GPU=2.0),
        node(CPU=1.0, GPU=8.0),
        node(GPU=8.0),
        node(False, CPU=99.0, GPU=99.0),
    ]
    assert ray_cluster.count_workers(nodes, 0) == 8
    assert ray_cluster.count_workers(nodes, 1) == 2 + 1
    assert ray_cluster.count_workers(nodes, 0.5) == 3 + 1
    assert ray_cluster.count_workers([node(CPU=9.0, GPU=1.0)], 0.25) == 4


@on_cluster
def test_a_cluster_without_room_for_a_worker_is_refused(task):
    with pytest.raises(ValueError, match=r"0\.5 GPUs"):
        next(run_on_ray(task, PARTS, actors=2, gpus=0.5))
    with pytest.raises(ValueError, match="none"):
        ray_cluster.count_workers([], 0)


def test_numbers_of_workers_and_gpus_make_sense():
    for options, keyword in (
        ({"actors": 0}, "actors"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 2}, "gpus"),
        ({"gpus": nan}, "gpus"),
        ({"engine": "local", "actors": 2}, "Ray"),
        ({"engine": "spark"}, "engine"),
    ):
        with pytest.raises(ValueError, match=keyword):
            Execution(**{"engine": "ray", **options})
