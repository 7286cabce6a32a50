"""The command line, run for real: its files, its words, and runs that are killed."""

import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from processes import Child

from benchmarks.chaos_runs import difference, flat, table
from literate_rl.apps.cli import Command
from literate_rl.apps.commands import main
from literate_rl.apps.training import ALGORITHMS
from literate_rl.book.contract_models import CategoricalActor, QNetwork, StateValue
from literate_rl.ground.signatures import check_finite
from literate_rl.learners.ppg_learner import PPGConfig
from literate_rl.learners.ppo import PPO
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import load, load_checkpoint, load_env, save_checkpoint

# One worker, so that `whole` is made once.
pytestmark = pytest.mark.xdist_group("cli")

# Small enough to be run again and again, with all that has a state: the optimiser, both
# normalisers, the order of the minibatches, and environments in the middle of episodes.
ITERATION = 32  # steps
STEPS = 64 * ITERATION
TINY = (
    "--seed=3 --num-envs=2 --num-steps=16 --checkpoint-interval=2 --num-epochs=2 "
    f"--num-minibatches=2 --normalize-obs --scale-reward --total-steps={STEPS}"
).split()
SHORT = ["ppo", "--name=a", *TINY, "--total-steps=64"]


def run(place: Path, *words: str, stop: int = 0) -> tuple[int, str, str]:
    """Run a command in a process in which one thread works.

    Args:
        place: Where.
        words: The command.
        stop: A signal that it gets, once the table of its run has some rows.
    """
    with Child(
        [sys.executable, "-m", "literate_rl", *words],
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        path, started = place / "runs/a/metrics.csv", time.monotonic()
        while stop and not (path.exists() and path.read_bytes().count(b"\n") > 5):
            assert time.monotonic() - started < 120
            assert process.poll() is None
            time.sleep(0.002)
        if stop:
            process.send_signal(stop)
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def refusal(words: list[str]) -> str:
    """Run a command in this process; return the one line that it ends with."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    message = str(ended.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def snapshot(place: Path) -> dict[Path, bytes]:
    """Return the bytes of all files."""
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def edit(directory: Path, config: Any = (), **changes: Any) -> None:
    """Change the stored settings of a run."""
    path = directory / "settings.json"
    stored = json.loads(path.read_text())
    changes["config"] = stored["config"] | dict(config)
    path.write_text(json.dumps(stored | changes))


def steps_of(directory: str | Path) -> list[int]:
    return [int(row[0]) for row in table(Path(directory))[1:]]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty directory, from which Python imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("DISPLAY", "")
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on CartPole that nobody disturbed, with a film, without a screen."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.chdir(place)
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
            patch.delenv(name, raising=False)
        main(["ppo", "--env=CartPole-v1", "--name=a", "--watch", *TINY])
    (place / "said.txt").write_text(said.getvalue())
    return place / "runs/a"


@pytest.fixture
def copied(whole, here):
    """A copy of a run that may be tampered with, as runs/b."""
    return shutil.copytree(whole, here / "runs/b")


# --- A run from its beginning to its end ----------------------------------------------


def test_a_run_leaves_its_files_and_says_where(whole):
    assert [*whole.glob("events.out.tfevents.*")]
    assert not [*whole.glob("*.new")]
    out = (whole.parents[1] / "said.txt").read_text()
    for line in ("directory: runs/a\n", "runs/a/checkpoint.pt\n", "runs/a/video.mp4\n"):
        assert line in out
    settings = json.loads((whole / "settings.json").read_text())
    # What was not named is what suits the environment, not the dataclass's default.
    assert (settings["config"]["seed"], settings["config"]["gamma"]) == (3, 0.98)
    assert steps_of(whole) == [*range(ITERATION, STEPS + 1, ITERATION)]
    # What is said, filmed and saved is one agent.
    returns = evaluate(load(whole), "CartPole-v1", 20, seed=4)
    assert f"without noise: {returns.mean():.1f} ± {returns.std():.1f}\n" in out
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(whole / "video.mp4"))
    assert frames == evaluate(load(whole), "CartPole-v1", 1, seed=0)[0]


def test_a_killed_run_comes_to_the_same_end(whole, here):
    """A real process; test_chaos kills many more, of all algorithms, without starts."""
    words = ["ppo", "--name=a", *TINY]
    code, *_ = run(here, *words, stop=signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert load_checkpoint("runs/a/checkpoint.pt")["step"] < STEPS
    # What a run has may be typed again.
    main(["ppo", "--resume=runs/a", "--env=CartPole-v1", *TINY])
    names = [name for name, _ in flat(load_checkpoint("runs/a/checkpoint.pt"))]
    assert any("square_avg" in name or "exp_avg_sq" in name for name in names)
    assert any("generator" in name for name in names)
    assert difference(Path("runs/a"), whole) == ""


def test_an_interrupt_saves_and_says_how_to_go_on(here, ctrl_c, capsys, monkeypatch):
    """In this process; test_processes presses it in a terminal's."""
    (here / "mine.py").write_text("")
    iterate = PPO.iterate

    def pressed(learner):
        if learner.step == 4 * ITERATION:
            signal.raise_signal(signal.SIGINT)
        return iterate(learner)

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "iterate", pressed)
        main(["ppo", "--env=mine:CartPole-v1", "--name=a", *TINY])
    out = capsys.readouterr().out
    step = load_checkpoint("runs/a/checkpoint.pt")["step"]
    assert f"interrupted at step {step} of {STEPS}\n" in out
    assert steps_of("runs/a")[-1] == step == 5 * ITERATION
    again = "--resume runs/a --env mine:CartPole-v1"
    assert f"go on with {again}\n" in out
    main(["ppo", *again.split()])
    del sys.modules["mine"]
    assert steps_of("runs/a") == [*range(ITERATION, STEPS + 1, ITERATION)]


# --- Help and refusals ----------------------------------------------------------------


def test_help_has_every_setting_and_shows_what_suits_the_environment(capsys):
    with pytest.raises(SystemExit):
        main(["ppg", "--env", "Acrobot-v1", "--help"])
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert "Id of a Gymnasium environment" in text
    for field in dataclasses.fields(Command) + dataclasses.fields(PPGConfig):
        shown = field.name not in ("config", "typed")
        assert (f"--{field.name.replace('_', '-').rstrip('-')}" in text) == shown
    total = ALGORITHMS["ppg"].settings("Acrobot-v1").total_steps
    assert f"(default: {total})" in text
    assert total != PPGConfig().total_steps


def qnet():
    return QNetwork(4, 2)


def wide():
    return QNetwork(4, 3)


class Unseen(CartPoleEnv):
    """A pole that nobody can draw."""

    metadata = {"render_modes": []}

    def __init__(self, render_mode=None):
        super().__init__()


REFUSED = {
    "ppo --name taken": "runs/taken holds a run",
    "ppo --resume runs/missing": "no checkpoint runs/missing/checkpoint.pt",
    "ppo --resume runs/taken": "is damaged or no checkpoint",
    "ppo --name ..": "name must",
    "ppo --env nowhere:A-v0": "env 'nowhere:A-v0' cannot be made: No module",
    "ppo --env test_cli:Unseen --watch": "has no render mode 'rgb_array'",
    "ppo --device cuda": "device must",
    "ppo --env Pendulum-v1 --gamma 2": "gamma must",
    "ppo --lr 0.1": "no option --lr (is it --learning-rate?)",
    "a2c --mask 10 2x": "mask must",
    "a2c --wrappers FrameStack": "is it FrameStackObservation?",
    "dqn --qnet test_cli:wide": "q_value must have shape",
}


@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(words, here, capsys):
    (here / "runs/taken").mkdir(parents=True)
    (here / "runs/taken/checkpoint.pt").write_text("no checkpoint")
    before = sorted(here.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words))
    out, err = capsys.readouterr()
    said = f"{ended.value.code} {err}".replace("│", " ")
    assert REFUSED[words] in " ".join(said.split())
    assert (out, "Traceback" in err) == ("", False)
    assert sorted(here.rglob("*")) == before


# --- What the machine lacks and others have written -----------------------------------

EATS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
except BaseException:
    print("eaten")
"""


def test_ctrl_c_during_an_import_ends_the_start(tmp_path):
    """Even in a module that catches everything."""
    (tmp_path / "torch.py").write_text(EATS)
    assert run(tmp_path, "ppo") == (130, "", "\ninterrupted\n")
    assert {path.name for path in tmp_path.iterdir()} <= {"torch.py", "__pycache__"}


def raising(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_numbers_that_explode_say_when_and_what_to_try(here, monkeypatch):
    iterate = PPO.iterate
    with monkeypatch.context() as patch:
        patch.setattr(
            PPO,
            "iterate",
            lambda x: check_finite(math.inf) if x.step else iterate(x),
        )
        said = refusal(SHORT)
    assert "the numbers exploded near step 32: try a third of learning_rate" in said
    assert "only metrics: literate-rl look runs/a__failed__" in said
    (failed,) = Path("runs").iterdir()
    assert steps_of(failed) == [32]
    main(SHORT)  # so the next try may have the name
    assert Path("runs/a/checkpoint.pt").exists()


def test_a_run_that_fails_before_it_has_learned_leaves_nothing(here, monkeypatch):
    monkeypatch.setattr(PPO, "update", raising(KeyError("odd")))
    assert refusal(SHORT).startswith("error: KeyError: 'odd'")
    assert not list(Path("runs").iterdir())
    # What somebody else keeps there stays.
    Path("runs/a").mkdir()
    Path("runs/a/notes.txt").write_text("mine")
    refusal(SHORT)
    assert [path.name for path in Path("runs/a").iterdir()] == ["notes.txt"]


# --- Folders that are damaged, foreign, malicious or in use ---------------------------

EVIL = "from pathlib import Path; Path('opened').write_text('by the sender')"


@pytest.mark.parametrize("where", ["evil", "runs.b.evil", "./evil"])
@pytest.mark.parametrize("what", ["env", "qnet", "wrappers"])
def test_a_foreign_folder_imports_nothing_that_was_not_named(copied, where, what):
    Path("evil.py").write_text(EVIL)
    (copied / "evil.py").write_text(EVIL)
    name = f"{where}:CartPole-v1"
    changes = {"env": {"env": name}, "qnet": {"models": {"qnet": name}}}
    changes["wrappers"] = {"wrappers": [name]}
    edit(copied, **changes[what])
    state = load_checkpoint(copied / "checkpoint.pt")
    state["settings"] |= changes[what]
    save_checkpoint(copied / "checkpoint.pt", state)
    before = snapshot(Path())
    resume = ["ppo", "--resume", "runs/b"]
    hint = f"may not choose whose code runs: hand over again --{what} {name}"
    assert hint in refusal([*resume, "--watch"])
    assert f"the run has --{what} {name}, not" in refusal([*resume, f"--{what}", "X"])
    load("runs/b")
    if what != "qnet":
        assert "hand over again" in refusal(["show", "runs/b"])
    assert snapshot(Path()) == before
    if (what, where) == ("env", "evil"):
        main([*resume, "--env", name])
        del sys.modules["evil"]
        assert Path("opened").exists(), "it was there to be imported"


def test_a_foreign_folder_joins_no_cluster_that_was_not_named(here):
    main(["impala", "--name=a", "--total-steps=64", "--actors=1"])
    address = "127.0.0.1:9"  # nobody is there
    edit(here / "runs/a", {"transport": "ray", "address": address, "total_steps": 999})
    before, resume = snapshot(here), ["impala", "--resume", "runs/a"]
    named = f"--actors 1 --transport ray --address {address}"
    assert refusal(resume).endswith(f"whose code runs: hand over again {named}")
    other = named.replace("127.0.0.1", "localhost").split()
    assert f"the run has --address {address}, not " in refusal([*resume, *other])
    assert snapshot(here) == before
    pytest.importorskip("ray")
    assert "at address" in refusal([*resume, *named.split()])


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        ({"num_envs": "4"}, "", "settings.json: num_envs must be an integer, got str"),
        ({"no_such": 1}, "", "unexpected keyword argument 'no_such'"),
        ({}, "--total-steps=1", f"the run has --total-steps {STEPS}, not 1"),
        ({}, "--num_steps 8", "--num-steps 16, not 8"),
        ({}, "--name other", "keeps its name: leave out 'other'"),
        ({}, "--wrappers ClipReward(0,1)", "--wrappers none, not"),
    ],
)
def test_what_a_resumed_run_cannot_be_is_refused(copied, config, words, message):
    edit(copied, config)
    before = snapshot(copied)
    assert message in refusal(["ppo", "--resume=runs/b", *words.split()])
    assert "algorithm is 'ppo', not 'ppg'" in refusal(["ppg", "--resume=runs/b"])
    assert snapshot(copied) == before


# --- Models, environments and wrappers of one's own -----------------------------------


def critic():
    return StateValue(4)


class Drawing(CategoricalActor):
    """It cannot be greedy."""

    mode = property()  # no method, as in a class that has none

    def __init__(self):
        super().__init__(4, 2)


@pytest.mark.parametrize(
    ("algorithm", "named", "how"),
    [
        ("dqn", "--qnet test_cli:qnet", "without noise"),
        ("dqn", "--encoder worlds:make_eye", "without noise"),
        ("a2c", "--actor test_cli:Drawing --critic test_cli:critic", "as it draws"),
    ],
)
def test_models_of_ones_own_are_named_again(here, capsys, algorithm, named, how):
    main([algorithm, "--name=a", *named.split(), "--total-steps=300"])
    out, resume = capsys.readouterr().out, [algorithm, "--resume", "runs/a"]
    assert f"return of 20 episodes {how}" in out
    assert f"literate-rl {' '.join(resume)} {named} --watch\n" in out
    given = ", ".join(f"{role}=..." for role in re.findall(r"--(\w+)", named))
    assert f"load it:       literate_rl.load('runs/a', {given})\n" in out
    assert f"again {named[:12]}" in refusal(resume)
    other = refusal([*resume, *re.sub(":\\S+", ":wide", named).split()])
    assert f"the run has {named.split(' --')[0]}, not " in other
    main([*resume, *named.split(), "--total-steps=600"])
    assert steps_of("runs/a")[-1] >= 600


ROOMS = """
import gymnasium as gym

class {room}(gym.Wrapper):
    def __init__(self, render_mode=None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
"""


def test_an_environment_may_be_named_by_its_file(here, capsys):
    Path("inner").mkdir()
    Path("inner/rooms.py").write_text(ROOMS.format(room="Room"))
    inside = "inner/rooms.py:Room"
    forms = {"inner/rooms.py": inside, "rooms:Room": "rooms:Room"}
    for number, (form, stored) in enumerate(forms.items()):
        run = f"runs/n{number}"
        main(["ppo", "--name", f"n{number}", "--env", form, *SHORT[2:]])
        assert json.loads(Path(run, "settings.json").read_text())["env"] == stored
        out = capsys.readouterr().out
        main(shlex.split(re.search("watch it: +literate-rl (.*) --watch", out)[1]))
        capsys.readouterr()
        assert evaluate(load(run), load_env(run, form), 1).shape == (1,)
        assert f"again --env {stored}" in refusal(["ppo", "--resume", run])
