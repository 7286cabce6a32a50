"""The command line, run for real: its files, its words, and runs that are killed."""

import dataclasses
import inspect
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import pytest
from elsewhere import elsewhere
from gymnasium.envs.classic_control import CartPoleEnv
from processes import Child

from benchmarks.chaos_runs import difference, flat, table
from literate_rl.apps import cli, training
from literate_rl.apps.cli import Command
from literate_rl.apps.commands import main
from literate_rl.apps.training import ALGORITHMS, settings_of
from literate_rl.ground.signatures import check_finite
from literate_rl.learners.ppg_learner import PPGConfig
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    Run,
    fit,
    load,
    load_checkpoint,
    load_env,
    save_checkpoint,
)

# One worker, so that `whole` is made once.
pytestmark = pytest.mark.xdist_group("cli")

# Small enough to be run again and again, with all that has a state: the optimiser, both
# normalisers, the order of the minibatches, and environments in the middle of episodes.
TINY = ["--seed=3", "--num-envs=2", "--num-steps=16", "--checkpoint-interval=2"]
TINY += ["--num-epochs=2", "--num-minibatches=2", "--normalize-obs", "--scale-reward"]
ITERATION = 32  # steps
STEPS = 64 * ITERATION
TINY += [f"--total-steps={STEPS}"]


def command(*options: str, algorithm: str = "ppo") -> list[str]:
    return [sys.executable, "-m", "literate_rl", algorithm, *options]


def environment() -> dict[str, str]:
    """Return an environment without a screen, in which one thread does the work."""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    kept = {name: x for name, x in os.environ.items() if name not in hidden}
    return kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}


def run(
    place: Path, *options: str, algorithm: str = "ppo"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*options, algorithm=algorithm),
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def signal_after(
    number: int,
    place: Path,
    rows: int,
    *options: str,
    algorithm: str = "ppo",
):
    """Start a run and send it a signal once its table has some rows; return the end."""
    table = place / "metrics.csv"
    started = time.monotonic()
    with Child(
        command(*options, algorithm=algorithm),
        cwd=place.parents[1],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while lines_of(table) <= rows and process.poll() is None:
            assert time.monotonic() - started < 120
            time.sleep(0.002)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def assert_same_to_the_bit(one: Path, other: Path) -> None:
    """Compare the checkpoints and the tables of two runs, all but the speed."""
    names = [name for name, _ in flat(load_checkpoint(one / "checkpoint.pt"))]
    assert any("square_avg" in name or "exp_avg_sq" in name for name in names)
    assert any("generator" in name for name in names)
    assert difference(one, other) == ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run on CartPole that nobody disturbed, with a film of its agent."""
    place = tmp_path_factory.mktemp("whole")
    done = run(place, "--env", "CartPole-v1", "--name", "a", "--watch", *TINY)
    assert done.returncode == 0, done.stderr
    (place / "out.txt").write_text(done.stdout)
    (place / "err.txt").write_text(done.stderr)
    return place / "runs/a"


# --- A run from its beginning to its end ----------------------------------------------


def test_a_run_leaves_its_files_and_says_where(whole):
    names = {path.name for path in whole.iterdir()}
    assert {"settings.json", "metrics.csv", "checkpoint.pt", "video.mp4"} <= names
    assert any(name.startswith("events.out.tfevents.") for name in names)
    assert not any(name.endswith(".new") for name in names)
    out = (whole.parents[1] / "out.txt").read_text()
    for line in ("directory: runs/a\n", "runs/a/checkpoint.pt\n", "runs/a/video.mp4\n"):
        assert line in out


def test_progress_is_shown_beside_the_output(whole):
    err = (whole.parents[1] / "err.txt").read_text()
    assert f"{STEPS}/{STEPS}" in err
    assert "Traceback" not in err
    # With a checkpoint after so few steps hardly any episode can end.
    warnings = [line for line in err.splitlines() if "arning" in line]
    assert all("checkpoint_interval" in line for line in warnings)
    assert "return=" in err
    assert "KL=" in err


def test_settings_are_those_of_the_command(whole):
    settings = json.loads((whole / "settings.json").read_text())
    assert settings["algorithm"] == "ppo"
    assert settings["env"] == "CartPole-v1"
    config = PPOConfig(**settings["config"])
    assert (config.seed, config.num_envs, config.total_steps) == (3, 2, STEPS)
    # What was not named is what suits the environment, not the dataclass's default.
    assert config.gamma == 0.98 != PPOConfig().gamma


def test_metrics_have_a_row_for_each_iteration(whole):
    rows = table(whole)
    assert rows[0][:3] == ["step", "charts/episodic_return", "charts/episodic_length"]
    assert [int(row[0]) for row in rows[1:]] == list(range(32, STEPS + 1, ITERATION))
    assert all(row[5] for row in rows[1:])  # a loss is there in every row


def test_the_printed_return_is_that_of_the_loaded_policy(whole):
    returns = evaluate(load(whole), "CartPole-v1", 20, seed=4)
    out = (whole.parents[1] / "out.txt").read_text()
    assert f"without noise: {returns.mean():.1f} ± {returns.std():.1f}\n" in out


def test_the_film_shows_the_agent_and_needed_no_screen(whole):
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(whole / "video.mp4"))
    assert frames == evaluate(load(whole), "CartPole-v1", 1, seed=0)[0]


# --- Killed and resumed ---------------------------------------------------------------


def test_two_runs_with_one_seed_are_equal_to_the_bit(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["ppo", "--env", "CartPole-v1", "--name", "b", *TINY])
    assert_same_to_the_bit(tmp_path / "runs/b", whole)


def test_a_killed_run_comes_to_the_same_end(whole, tmp_path, monkeypatch):
    """A real process; test_chaos kills many more, of all algorithms, without starts."""
    directory, options = tmp_path / "runs/killed", ["--name", "killed", *TINY]
    for rows in (1, 25):
        code, _, _ = signal_after(signal.SIGKILL, directory, rows, *options)
        assert code == -signal.SIGKILL
        assert load_checkpoint(directory / "checkpoint.pt")["step"] < STEPS
        options = ["--resume", "runs/killed"]
    monkeypatch.chdir(tmp_path)
    main(["ppo", *options])
    assert_same_to_the_bit(directory, whole)


def test_an_interrupt_saves_and_the_run_can_go_on(tmp_path, monkeypatch):
    directory = tmp_path / "runs/stopped"
    options = ["--name", "stopped", *TINY]
    code, out, err = signal_after(signal.SIGINT, directory, 10, *options)
    assert code == 0
    assert "Traceback" not in err
    step = load_checkpoint(directory / "checkpoint.pt")["step"]
    assert f"interrupted at step {step} of {STEPS}\n" in out
    assert "go on with --resume runs/stopped\n" in out
    assert int(table(directory)[-1][0]) == step < STEPS

    monkeypatch.chdir(tmp_path)
    main(["ppo", "--resume", "runs/stopped"])
    steps = [int(row[0]) for row in table(directory)[1:]]
    assert steps == list(range(32, STEPS + 1, ITERATION))
    assert load_checkpoint(directory / "checkpoint.pt")["step"] == STEPS


# --- Help and refusals ----------------------------------------------------------------


def help_of(arguments: list[str], capsys) -> str:
    """Return the help text without its frame and its line breaks."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())


@pytest.mark.parametrize(
    ("algorithm", "described"),
    [("ppo", (Command, PPOConfig)), ("ppg", (Command, PPOConfig, PPGConfig))],
)
def test_help_explains_every_setting(algorithm, described, capsys):
    text = help_of([algorithm, "--help"], capsys)
    assert "--typed" not in text
    for settings in described:
        docs = [inspect.getdoc(kind) or "" for kind in settings.__mro__[:-1]]
        for field in dataclasses.fields(settings):
            if field.name in ("config", "typed"):
                continue
            assert f"--{field.name.replace('_', '-').rstrip('-')}" in text
            pattern = rf"\n    {field.name}: (.*?)(?=\n    \w+: |\Z)"
            entries = [x for doc in docs if (x := re.search(pattern, doc, re.S))]
            assert " ".join(entries[0][1].split()) in text, field.name


def test_help_shows_the_defaults_that_suit_the_environment(capsys):
    text = help_of(["ppo", "--env", "Acrobot-v1", "--help"], capsys)
    assert f"(default: {ppo_settings('Acrobot-v1').total_steps})" in text
    assert ppo_settings("Acrobot-v1").total_steps != PPOConfig().total_steps


def test_an_error_is_one_line_and_no_traceback(tmp_path):
    done = run(tmp_path, "--env", "Nothing-v0")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: env 'Nothing-v0' cannot be made: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--name taken", "runs/taken holds a run: resume it or choose another name"),
        ("--resume runs/missing", "there is no checkpoint runs/missing/checkpoint.pt"),
        ("--resume runs/broken", "is damaged or no checkpoint"),
        ("--name ..", "name must be that of a directory below runs/, got '..'"),
        ("--name .", "name must be that of a directory below runs/, got '.'"),
        ("--env no_such_module:A-v0", "env 'no_such_module:A-v0' cannot be made: No"),
        (f"--name {'x' * 300}", "File name too long"),
        ("--device cuda", "device must be cpu or auto where PyTorch finds no CUDA"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    for name in ("taken", "broken"):
        directory = tmp_path / "runs" / name
        directory.mkdir(parents=True)
        (directory / "checkpoint.pt").write_text("no checkpoint")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match=message) as ended:
        main(["ppo", *options.split()])
    assert str(ended.value.code).startswith("error: ")
    assert "\n" not in str(ended.value.code)
    assert sorted(tmp_path.rglob("*")) == before


EXPONENT = "priority_exponent is the replay buffer's alpha, temperature is SAC's"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sarsa", "there is no command 'sarsa'"),
        ("ppo --no-such-option 1", "no-such-option"),
        ("ppo --num-envs 0", "num_envs must be at least 1, got 0"),
        ("ppo --env Pendulum-v1 --gamma 2", "gamma must be at least 0 and at most 1"),
        ("ppo --seed one", "one"),
        ("ppo --device gpu", "gpu"),
        ("ppg --aux-interval 0", "aux_interval must be at least 1, got 0"),
        ("sac --alpha 0.2", f"no option --alpha ({EXPONENT})"),
        ("rainbowapex --alpha=0.2", f"no option --alpha ({EXPONENT})"),
        ("a2c --epsilon=0.1", "no action is epsilon-greedy"),
        ("a2c --decay=0.1", "rmsprop_decay"),
        ("ppo --alpha 0.2", "Unrecognized"),
        ("ppo --lr 0.1", "no option --lr (is it --learning-rate?)"),
        ("ppo --gae-lambda=0.9", "no option --gae-lambda (is it --lambda_?)"),
        ("dqn --total_timesteps 9", "(is it --total-steps?)"),
        ("sac --ent-coef 0.1", "(is it --temperature?)"),
        ("ppo --hidden 64", "make_policy(…, hidden=64)"),
        ("a2c --net-arch 64", "make_policy(…, hidden=64)"),
    ],
)
def test_a_wrong_command_exits_with_2_and_says_why(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


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
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "\ninterrupted\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"torch.py", "__pycache__"}


def raising(error: BaseException):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


SHORT = ["ppo", "--name", "a", *TINY, "--total-steps=64"]
KEPT = "; what was saved is kept, go on with --resume runs/a"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), r"No space left on device"),
        (PermissionError(13, "Permission denied", "x"), r"Permission denied: 'x'"),
        (MemoryError("too\nlarge"), r"MemoryError: too large \(.*test_cli.py:\d+\)"),
        (RuntimeError("shapes"), r"RuntimeError: shapes \(.*test_cli.py:\d+\)"),
        (KeyError("obs"), r"KeyError: 'obs' \(.*test_cli.py:\d+\)"),
    ],
)
def test_what_goes_wrong_in_training_is_one_line_and_says_how_to_go_on(
    tmp_path, monkeypatch, error, message
):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        iterate, fail = PPO.iterate, raising(error)
        patch.setattr(PPO, "iterate", lambda x: fail() if x.step else iterate(x))
        arguments = [*SHORT, "--checkpoint-interval=1"]
        assert re.fullmatch(f"error: .*{message}{KEPT}", refusal(arguments))
    main(["ppo", "--resume", "runs/a"])
    assert load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"] == 64


def test_numbers_that_explode_say_when_and_what_to_try(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    iterate = PPO.iterate

    def explode(learner: Any) -> Any:
        if learner.step:
            check_finite(math.inf)
        return iterate(learner)

    monkeypatch.setattr(PPO, "iterate", explode)
    wanted = (
        "error: the result must be finite; the numbers exploded near step 32: try a "
        "third of learning_rate, or smaller rewards, with scale_reward; no checkpoint "
        "was kept, only metrics: literate-rl look runs/a__failed__"
    )
    assert refusal(SHORT).startswith(wanted)
    (failed,) = Path("runs").iterdir()
    assert len(table(failed)) == 2, "a header and a row"
    # So the next try may have the name.
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    main(SHORT)
    assert Path("runs/a/checkpoint.pt").exists()


def test_a_run_that_fails_before_it_has_learned_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PPO, "update", raising(ValueError("the loss is odd")))
    assert refusal(SHORT) == "error: the loss is odd"
    assert not list(Path("runs").iterdir())
    # What somebody else keeps there stays.
    Path("runs/a").mkdir()
    Path("runs/a/notes.txt").write_text("mine")
    assert refusal(SHORT) == "error: the loss is odd"
    assert [path.name for path in Path("runs/a").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ppo --value-weight -1", "value_weight must be at least 0"),
        ("ppg --entropy-weight nan", "entropy_weight must be at least 0"),
        ("a2c --value-weight inf", "value_weight must be .*less than inf"),
        ("sac --target-entropy nan", "target_entropy must be"),
        ("rainbow --value-min 5 --value-max 1", "value_min must be below value_max"),
    ],
)
def test_settings_that_no_run_could_use_leave_no_run(
    tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--name", "a"])
    said = " ".join(f"{ended.value.code} {capsys.readouterr().err}".split())
    assert re.search(message, re.sub(r" *│ *", " ", said))
    assert not (tmp_path / "runs").exists()


def test_python_x_dev_shows_the_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PPO, "iterate", raising(KeyError("obs")))
    monkeypatch.setattr(cli, "sys", SimpleNamespace(flags=DevMode))
    with pytest.raises(KeyError):
        main(SHORT)


class DevMode:
    dev_mode = True


def test_a_run_that_cannot_be_kept_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    assert "Not a directory: 'runs/a'" in refusal(SHORT)
    assert (tmp_path / "runs").read_text() == "a file"


# --- Folders that are damaged, foreign, malicious or in use ---------------------------


def copied(whole: Path, place: Path) -> Path:
    """Return a copy of a run that may be tampered with, as runs/b."""
    return shutil.copytree(whole, place / "runs/b")


def snapshot(place: Path) -> dict[Path, bytes]:
    """Return the bytes of all files."""
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def refusal(arguments: list[str]) -> str:
    """Run a command in this process; return the one line that it ends with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    message = str(ended.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def edit_settings(directory: Path, **changes: object) -> None:
    path = directory / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_config(directory: Path, **changes: object) -> None:
    config = json.loads((directory / "settings.json").read_text())["config"]
    edit_settings(directory, config={**config, **changes})


def forge(directory: Path, env: str) -> None:
    """Name another environment, everywhere."""
    edit_settings(directory, env=env)
    state = load_checkpoint(directory / "checkpoint.pt")
    state["settings"]["env"] = env
    save_checkpoint(directory / "checkpoint.pt", state)


EVIL = "from pathlib import Path; Path('opened').write_text('by the sender')"


def test_a_foreign_folder_imports_nothing_that_was_not_named(
    whole, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as Python does with -m
    directory = copied(whole, tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    (directory / "evil.py").write_text(EVIL)
    for module in ("evil", "runs.b.evil"):
        env, resume = f"{module}:CartPole-v1", ["ppo", "--resume", "runs/b"]
        forge(directory, env)
        before = snapshot(tmp_path)
        assert refusal([*resume, "--watch"]) == (
            "error: a directory may not choose whose code runs: hand over again --env "
            f"{env}"
        )
        other = refusal([*resume, "--env", "CartPole-v1"])
        assert other == f"error: the run has --env {env}, not CartPole-v1"
        load("runs/b")
        with Run("runs/b", resume=True) as opened:
            assert opened.settings["env"] == env
        assert snapshot(tmp_path) == before

        main([*resume, "--env", env])
        assert "return of 20 episodes without noise" in capsys.readouterr().out
        (tmp_path / "opened").unlink()  # so the module was there to be imported
        for name in ("evil", "runs.b.evil", "runs.b", "runs"):
            sys.modules.pop(name, None)


def test_an_interrupted_run_says_what_must_be_named(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("")
    options = ["--env", "mine:CartPole-v1", "--name", "a", *TINY]
    directory = tmp_path / "runs/a"
    code, out, err = signal_after(signal.SIGINT, directory, 5, *options)
    assert code == 0, err
    again = re.search("go on with (.*)\n", out)[1]
    assert again == "--resume runs/a --env mine:CartPole-v1"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    main(["ppo", *again.split()])
    del sys.modules["mine"]
    assert load_checkpoint(directory / "checkpoint.pt")["step"] == STEPS


def test_a_foreign_folder_joins_no_cluster_that_was_not_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = ["--unroll-len=4", "--n-sample=2", "--total-steps=64", "--actors=1"]
    main(["impala", "--name", "a", *tiny])
    directory = tmp_path / "runs/a"
    address = "127.0.0.1:9"  # nobody is there
    edit_config(directory, transport="ray", address=address, total_steps=128)
    before = snapshot(tmp_path)
    resume = ["impala", "--resume", "runs/a"]
    named = f"--actors 1 --transport ray --address {address}"
    assert refusal(resume).endswith(f"whose code runs: hand over again {named}")
    other = named.replace("127.0.0.1", "localhost").split()
    assert f"the run has --address {address}, not " in refusal([*resume, *other])
    assert snapshot(tmp_path) == before
    pytest.importorskip("ray")
    assert "at address" in refusal([*resume, *named.split()])


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("CartPole-v1", ["--normalize-obs"]),
        ("Acrobot-v1", []),
    ],
)
@pytest.mark.parametrize("forged", [False, True])
def test_a_checkpoint_of_another_run_is_refused_and_nothing_lost(
    whole, tmp_path, monkeypatch, env, options, forged
):
    """The checkpoint says where it comes from; one that lies does not fit either."""
    monkeypatch.chdir(tmp_path)
    algorithm = "ppg" if env == "CartPole-v1" else "ppo"
    tiny = ["--num-envs=2", "--num-steps=16", "--num-minibatches=2", "--total-steps=32"]
    main([algorithm, "--env", env, "--name", "a", *tiny, *options])
    state = load_checkpoint(tmp_path / "runs/a/checkpoint.pt")
    if forged:
        state["settings"] = {"algorithm": "ppo", "env": "CartPole-v1"}
    directory = copied(whole, tmp_path)
    (directory / "checkpoint.previous.pt").unlink()
    (directory / "checkpoint.pt").unlink()
    save_checkpoint(directory / "checkpoint.pt", state)
    before = snapshot(tmp_path)
    message = refusal(["ppo", "--resume", "runs/b"])
    assert message.startswith("error: runs/b/checkpoint.pt ")
    if forged:
        assert "does not fit the settings: ValueError: it" in message
    else:
        assert "comes from another run: its " in message
    assert snapshot(tmp_path) == before


def test_the_algorithm_is_that_of_the_run(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied(whole, tmp_path)
    before = snapshot(tmp_path)
    message = refusal(["ppg", "--resume", "runs/b"])
    assert message.endswith("algorithm is 'ppo', not 'ppg'")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda d: edit_config(d, num_envs="4"),
            "num_envs must be an integer, got str",
        ),
        (
            lambda d: edit_config(d, num_envs=2.0),
            "num_envs must be an integer, got float",
        ),
        (
            lambda d: edit_config(d, num_envs=True),
            "num_envs must be an integer, got bool",
        ),
        (lambda d: edit_config(d, num_envs=0), "num_envs must be at least 1, got 0"),
        (lambda d: edit_config(d, gamma=None), "gamma must be a number, got NoneType"),
        (lambda d: edit_config(d, anneal="x"), "anneal must be a bool, got str"),
        (
            lambda d: edit_config(d, scale_reward=[1]),
            "scale_reward must be a bool, got list",
        ),
        (
            lambda d: edit_config(d, target_kl="x"),
            "target_kl must be a number or None, got str",
        ),
        (
            lambda d: edit_config(d, no_such=1),
            r"PPOConfig.__init__() got an unexpected keyword argument 'no_such'",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(
    whole, tmp_path, monkeypatch, edit, message
):
    monkeypatch.chdir(tmp_path)
    edit(copied(whole, tmp_path))
    before = snapshot(tmp_path)
    assert refusal(["ppo", "--resume", "runs/b"]).startswith(
        f"error: runs/b/settings.json: {message}"
    )
    assert snapshot(tmp_path) == before


def test_stored_words_are_words_and_legal_ones():
    stored, source = (
        {"config": dataclasses.asdict(PPGConfig(kl_reference="rollout"))},
        Path("x"),
    )
    assert settings_of(PPGConfig, stored, source).kl_reference == "rollout"
    for word, message in (
        (1, "must be 'snapshot' or 'rollout', got 1"),
        ("old", "must be 'snapshot' or"),
    ):
        stored["config"]["kl_reference"] = word
        with pytest.raises(ValueError, match=f"x: kl_reference {message}"):
            settings_of(PPGConfig, stored, source)


def test_a_damaged_run_says_how_to_go_on_and_comes_to_the_same_end(
    whole, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    directory = copied(whole, tmp_path)
    checkpoint = directory / "checkpoint.pt"
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    before = snapshot(tmp_path)
    message = refusal(["ppo", "--resume", "runs/b"])
    previous = "runs/b/checkpoint.previous.pt"
    step = load_checkpoint(previous)["step"]
    assert step < STEPS
    assert re.fullmatch(
        r"error: runs/b/checkpoint\.pt is damaged or no checkpoint: ValueError: the "
        rf"checksum of \S+ is wrong; to go on from step {step}, rename {previous} to "
        "checkpoint.pt",
        message,
    )
    assert snapshot(tmp_path) == before
    Path(previous).rename(checkpoint)
    main(["ppo", "--resume", "runs/b"])
    assert_same_to_the_bit(directory, whole)


def test_a_run_that_goes_on_elsewhere_is_not_resumed(tmp_path, monkeypatch):
    """A process trains; another one may look, and may write when it is dead."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "runs/a"
    endless = ["--name", "a", *TINY, "--total-steps=100000000"]
    started = time.monotonic()
    with Child(
        command(*endless),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while lines_of(directory / "metrics.csv") < 10:
            assert time.monotonic() - started < 120
            time.sleep(0.01)
        message = refusal(["ppo", "--resume", "runs/a"])
        assert message == "error: runs/a is in use by another process"
        assert "holds a run" in refusal(["ppo", *endless])
        assert load("runs/a").network.actor[0].in_features == 4
        assert process.poll() is None  # and nobody has disturbed it
        process.kill()
    goal = load_checkpoint(directory / "checkpoint.pt")["step"] + 4 * ITERATION
    edit_config(directory, total_steps=goal)
    main(["ppo", "--resume", "runs/a"])
    steps = [int(row[0]) for row in table(directory)[1:]]
    assert steps == list(range(ITERATION, goal + 1, ITERATION))


def test_impala_trains_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = ["--unroll-len=4", "--n-sample=2", "--batch-size=2", "--total-steps=64"]
    with pytest.warns(FutureWarning, match="--unroll-len is --num-steps now"):
        main(["impala", "--env", "Pendulum-v1", "--name", "a", *tiny, "--seed", "3"])
    settings = json.loads((tmp_path / "runs/a/settings.json").read_text())
    assert settings["algorithm"] == "impala"
    assert settings["config"]["num_steps"] == 4
    main(["impala", "--resume", "runs/a"])
    assert "return of 20 episodes" in capsys.readouterr().out
    policy = load(tmp_path / "runs/a")
    assert policy.network.actor.mean[0].in_features == 3


OFF_POLICY = "--learning-starts=32 --batch-size=8 --iteration-steps=32 --total-steps=64"


@pytest.mark.parametrize(
    ("algorithm", "options", "renamed"),
    [
        (
            "sac",
            f"--env=Pendulum-v1 --priority-exponent=0.6 {OFF_POLICY}",
            {"priority_exponent": "alpha"},
        ),
        ("dqnapex", f"--rollout-len=8 {OFF_POLICY}", {"priority_exponent": "alpha"}),
        (
            "a2c",
            "--rmsprop-decay=0.9 --rmsprop-epsilon=1e-3 --total-steps=80",
            {"rmsprop_decay": "decay", "rmsprop_epsilon": "epsilon"},
        ),
    ],
)
def test_a_run_of_before_has_its_old_names_and_goes_on(
    algorithm, options, renamed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    main([algorithm, "--name=a", *options.split()])
    source = Path("runs/a/settings.json")
    stored = json.loads(source.read_text())
    config = ALGORITHMS[algorithm].config
    wanted = settings_of(config, stored, source)
    values = {renamed.get(k, k): x for k, x in stored["config"].items()}
    assert renamed.keys().isdisjoint(values)
    edit_settings(Path("runs/a"), config=values | {"total_steps": 160})
    main([algorithm, "--resume=runs/a"])
    again = json.loads(source.read_text())
    assert settings_of(config, again, source) == dataclasses.replace(
        wanted, total_steps=160
    )
    # Both names at once are one too many.
    edit_settings(Path("runs/a"), config=stored["config"] | values)
    assert "unexpected keyword argument" in refusal([algorithm, "--resume=runs/a"])


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_a_row_of_the_log_may_be_about_several_iterations(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    asked = [name, "--name=a", *OFF_POLICY.split()]
    with pytest.raises(SystemExit):
        main([*asked, "--log-interval=48"])
    said = capsys.readouterr().err
    assert "log_interval must be a multiple of iteration_steps" in said
    assert {"32", "48"} <= {*re.findall(r"\d+", said)}
    main([*asked, "--log-interval=64"])
    lines = Path("runs/a/metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "64"]


# --- A model of one's own -------------------------------------------------------------

MODULE = """
from torch import nn

class MyQNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, ACTIONS)

    def forward(self, state):
        return self.layer(state)
"""
TINY_DQN = ["--total-steps=600", "--iteration-steps=200", "--learning-starts=100"]


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    """A directory with a module of the user's, which can be imported from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mynets", None)
    (tmp_path / "mynets.py").write_text(MODULE.replace("ACTIONS", "2"))
    return tmp_path


def test_a_run_goes_on_on_another_device(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = ["--num-envs=2", "--num-steps=16", "--num-epochs=1", "--total-steps=32"]
    seen = []

    def place_of_fit(learner, *arguments):
        seen.append(next(learner.policy.parameters()).device.type)
        return fit(learner, *arguments)

    monkeypatch.setattr(training, "fit", place_of_fit)
    with elsewhere():
        main(["ppo", "--name", "a", *tiny, "--device", "cuda"])
        settings = Path("runs/a/settings.json")
        stored = json.loads(settings.read_text())
        assert "device" not in stored | stored["config"]
        for steps, device in ((64, "cpu"), (96, "cuda"), (128, "auto")):
            stored["config"]["total_steps"] = steps
            settings.write_text(json.dumps(stored))
            main(["ppo", "--resume", "runs/a", "--device", device])
    assert seen == ["meta", "cpu", "meta", "cpu"]
    out = capsys.readouterr().out
    assert out.count("device: cpu (an update is") == 1, "only auto has a reason"
    assert out.count("return of 20 episodes") == 4
    assert lines_of(Path("runs/a/metrics.csv")) == 5


def test_a_network_of_ones_own_trains_and_resumes(mine, capsys):
    named = ["--qnet", "mynets:MyQNet"]
    main(["dqn", *named, "--name", "a", *TINY_DQN])
    settings = json.loads((mine / "runs/a/settings.json").read_text())
    assert settings["models"] == {"qnet": "mynets:MyQNet"}
    assert "return of 20 episodes" in capsys.readouterr().out
    edit_config(mine / "runs/a", total_steps=1000)
    main(["dqn", "--resume", "runs/a", *named])
    assert int(table(mine / "runs/a")[-1][0]) == 1000


EYE = """
from torch import nn

class Eye(nn.Module):
    output_size = 5

    def __init__(self, size=4):
        super().__init__()
        self.layer = nn.Linear(size, 5)

    def forward(self, x):
        return self.layer(x)

def fitting(space):
    return Eye(space.shape[0])
"""


@pytest.mark.parametrize("maker", ["Eye", "fitting"])
def test_an_encoder_of_ones_own_trains_and_resumes(mine, maker):
    (mine / "myeyes.py").write_text(EYE)
    sys.modules.pop("myeyes", None)
    named = ["--encoder", f"myeyes:{maker}"]
    main(["dqn", *named, "--name", "a", *TINY_DQN])
    settings = json.loads((mine / "runs/a/settings.json").read_text())
    assert settings["models"] == {"encoder": f"myeyes:{maker}"}
    edit_config(mine / "runs/a", total_steps=1000)
    with pytest.raises(SystemExit, match=f"again --encoder myeyes:{maker}"):
        main(["dqn", "--resume", "runs/a"])
    main(["dqn", "--resume", "runs/a", *named])
    assert int(table(mine / "runs/a")[-1][0]) == 1000


ACTOR = """
from literate_rl.book.contract_models import CategoricalActor, StateValue

class Drawing(CategoricalActor):
    mode = property()  # no method, as in a class that has none

def actor():
    return CategoricalActor(4, 2)

def drawing():
    return Drawing(4, 2)

def critic():
    return StateValue(4)
"""


@pytest.mark.parametrize(
    ("actor", "how"), [("actor", "without noise"), ("drawing", "as it draws")]
)
def test_what_was_evaluated_is_said(mine, capsys, actor, how):
    (mine / "myactors.py").write_text(ACTOR)
    sys.modules.pop("myactors", None)
    models = ["--actor", f"myactors:{actor}", "--critic", "myactors:critic"]
    main(["a2c", *models, "--name", "a", "--total-steps=400"])
    assert f"return of 20 episodes {how}" in capsys.readouterr().out


def test_a_folder_imports_no_network_that_was_not_named(mine):
    main(["dqn", "--qnet", "mynets:MyQNet", "--name", "a", *TINY_DQN])
    before = (mine / "runs/a/metrics.csv").read_bytes()
    (mine / "mynets.py").write_text("raise SystemExit('imported')")
    sys.modules.pop("mynets", None)
    with pytest.raises(SystemExit, match="again --qnet mynets:MyQNet"):
        main(["dqn", "--resume", "runs/a"])
    assert (mine / "runs/a/metrics.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--qnet", "mynets:Missing"], "mynets:Missing must be module:name"),
        (["--qnet", "nowhere:MyQNet"], "nowhere:MyQNet must be module:name"),
        (["--qnet", "mynets"], "mynets must be module:name"),
        (["--actor", "mynets:MyQNet"], "must be qnet, got actor"),
    ],
)
def test_a_network_that_cannot_be_made_is_said_in_one_line(mine, options, message):
    with pytest.raises(SystemExit, match=message) as end:
        main(["dqn", *options, "--name", "a", *TINY_DQN])
    assert "\n" not in str(end.value)
    assert not (mine / "runs").exists()


def test_a_network_that_breaks_its_contract_leaves_no_run(mine):
    (mine / "mynets.py").write_text(MODULE.replace("ACTIONS", "3"))
    with pytest.raises(SystemExit, match="q_value must have shape"):
        main(["dqn", "--qnet", "mynets:MyQNet", "--name", "a", *TINY_DQN])
    assert not (mine / "runs").exists()


def test_models_are_stored_as_they_were_typed_and_told_so(mine, monkeypatch):
    """A function that makes a model has another name than the model's class."""
    (mine / "myactors.py").write_text(ACTOR)
    sys.modules.pop("myactors", None)
    models = ["--actor", "myactors:actor", "--critic", "myactors:critic"]
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", lambda learner, run, *_: run.save(learner))
        patch.setattr(cli, "report", lambda *_: None)
        main(["a2c", *models, "--name", "a", "--total-steps=400"])
    with pytest.raises(SystemExit, match="again --actor myactors:actor"):
        main(["a2c", "--resume", "runs/a"])
    main(["a2c", "--resume", "runs/a", *models])
    assert int(table(mine / "runs/a")[-1][0]) == 400


@pytest.mark.parametrize("models", [None, {}, "gone"])
def test_a_run_that_names_no_models_can_be_interrupted_and_says_how_to_go_on(
    whole, tmp_path, monkeypatch, capsys, models
):
    monkeypatch.chdir(tmp_path)
    directory = copied(whole, tmp_path)
    edit_config(directory, total_steps=2 * STEPS)
    settings = json.loads((directory / "settings.json").read_text())
    settings["models"] = models
    if models == "gone":
        del settings["models"]
    (directory / "settings.json").write_text(json.dumps(settings))
    monkeypatch.setattr(training, "fit", lambda *_: None)
    main(["ppo", "--resume", "runs/b"])
    assert "go on with --resume runs/b\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--total-steps=1"],
            f"the run has --total-steps {STEPS}, not 1",
        ),
        (["--gamma=0.5"], "the run has --gamma 0.98, not 0.5"),
        (["--name", "other"], "keeps its name: leave out 'other'"),
        (["--seed", "1"], "--seed 3, not 1"),
        (["--num_steps", "{num_steps}"], "--num-steps 16, not {num_steps}"),
        (["--no-normalize-obs"], "--normalize-obs True, not False"),
        (["--no_anneal"], "--anneal True, not False"),
        (["--target-kl", "0.5"], "--target-kl None, not 0.5"),
        (["--mask", "10", "01"], "the run has --mask None, not"),
        (["--wrappers", "ClipReward(0, 1)"], "the run has --wrappers none, not"),
        (["--encoder", "rooms:Room"], "the run has --encoder none, not rooms:Room"),
    ],
)
def test_what_a_resumed_run_cannot_change_is_refused(
    whole, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    copied(whole, tmp_path)
    before = snapshot(tmp_path)
    # The default is named like any other value.
    default = {"num_steps": ppo_settings("CartPole-v1").num_steps}
    options = [option.format(**default) for option in options]
    message = message.format(**default)
    assert message in refusal(["ppo", "--resume", "runs/b", *options])
    assert snapshot(tmp_path) == before


ROOMS = """
import gymnasium as gym

class {room}(gym.Wrapper):
    def __init__(self, render_mode=None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))

class Dim(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 2

def helper():
    pass
"""


@pytest.mark.parametrize("folder", ["", "inner"])
def test_an_environment_may_be_named_by_its_file(tmp_path, monkeypatch, capsys, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = f"rooms_{folder}"
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / f"{module}.py").write_text(ROOMS.format(room="Room"))
    place = str(Path(folder, module))
    slashed = place if folder else f"./{place}"
    forms = [f"{place}.py", f"{place}.py:Room", f"{slashed}:Room", f"{module}:Room"]
    around = ["--wrappers", f"{place}.py:Dim"]
    short = [*TINY[:-1], "--total-steps=64"]
    for number, form in enumerate(forms):
        main(["ppo", "--env", form, *around, "--name", f"n{number}", *short])
        settings = json.loads(Path(f"runs/n{number}/settings.json").read_text())
        assert settings["env"] == (f"{form}:Room" if number == 0 else form)
        named = re.search(
            "watch it: +literate-rl (.*) --watch", capsys.readouterr().out
        )
        main(shlex.split(named[1]))  # what is stored leads back
        for other in forms:
            env = load_env(f"runs/n{number}", other, [f"{place}.py:Dim"])
            assert evaluate(load(f"runs/n{number}"), env, 1).shape == (1,)
        assert "--env" in refusal(["ppo", "--resume", f"runs/n{number}"])
        capsys.readouterr()
    with pytest.raises(SystemExit, match=f"again --env {re.escape(forms[1])}"):
        main(["show", "runs/n1"])
    assert evaluate(load("runs/n0"), forms[0], 1).shape == (1,)


def test_a_file_that_leaves_it_open_is_answered_with_what_to_type(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("two_rooms.py").write_text(ROOMS.format(room="A") + ROOMS.format(room="B"))
    Path("no_room.py").write_text("def helper(): pass")
    Path("json.py").write_text(ROOMS.format(room="A"))
    for env, words in {
        "two_rooms.py": "2 environments, so name two_rooms.py:A or two_rooms.py:B",
        "no_room.py": "no environments, so name a class or function in it, as in no_",
        "nothing.py": "No module named 'nothing'",
        "gone/nothing.py:A": "No module named 'nothing'",
        "json.py:A": "json is the name of another module: rename ",
        "ALE/Nothing-v0": "Nothing",
    }.items():
        message = refusal(["ppo", "--env", env, *TINY])
        assert message.startswith(f"error: env {env!r} cannot be made: ")
        assert words in message


def test_a_file_in_the_settings_is_a_command(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = copied(whole, tmp_path)
    Path("harm.py").write_text("open('harmed', 'w').close()")
    settings = json.loads((directory / "settings.json").read_text())
    for env in ("harm.py", "./harm:Room", "harm.py:Room"):
        settings["env"] = env
        (directory / "settings.json").write_text(json.dumps(settings))
        for words in (["ppo", "--resume", "runs/b"], ["show", "runs/b"]):
            with pytest.raises(SystemExit):
                main(words)
        with pytest.raises(ValueError, match="env"):
            load_env(directory)
    assert not Path("harmed").exists()


def test_another_model_than_that_of_the_run_is_refused(mine):
    main(["dqn", "--qnet", "mynets:MyQNet", "--name", "a", *TINY_DQN])
    with Path("mynets.py").open("a") as file:
        file.write("\nclass Other(MyQNet):\n    pass\n")
    sys.modules.pop("mynets", None)
    message = refusal(["dqn", "--resume", "runs/a", "--qnet", "mynets:Other"])
    assert "the run has --qnet mynets:MyQNet, not mynets:Other" in message


def test_what_a_run_has_may_be_typed_again(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    copied(whole, tmp_path)
    main(["ppo", "--resume", "runs/b", "--env", "CartPole-v1", *TINY])
    assert "return of 20 episodes" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--env", "--name"])
def test_an_empty_word_is_no_default(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    assert refusal(["ppo", *TINY, option, ""]).startswith(f"error: {option[2:]} ")
    assert not list(tmp_path.iterdir())


def test_what_is_to_be_typed_is_quoted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "fit", lambda learner, run, *_: run.save(learner))
    main(["ppo", "--name", "my $(run)", *TINY])
    assert "go on with --resume 'runs/my $(run)'\n" in capsys.readouterr().out


LEAVING = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class Leaving(CartPoleEnv):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 40:
            raise SystemExit
        return super().step(action)

    def close(self):
        open("closed", "w").close()

gym.register("Leaving-v0", Leaving)
"""


def test_an_environment_that_leaves_python_fails_and_is_closed(mine):
    (mine / "leaving.py").write_text(LEAVING)
    message = refusal(["ppo", "--env", "leaving:Leaving-v0", "--name", "a", *TINY])
    assert "env 'Leaving-v0' failed in step: SystemExit" in message
    assert "what was saved is kept, go on with --resume runs/a" in message
    assert (mine / "closed").exists()


# --- What is trained in, and what is said in the end ----------------------------------

WORLD = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces

class Untold(gym.Env):
    observation_space = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        end = self.np_random.random() < 0.2
        return self.observation_space.sample(), 1.0, end, False, {}

class Twice(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward
"""
SMALL_A2C = ["a2c", "--name", "a", "--num-envs=2", "--num-steps=8"]


def test_a_class_with_wrappers_a_mask_and_one_encoder(mine, capsys):
    (mine / "myworld.py").write_text(WORLD)
    sys.modules.pop("myworld", None)
    around = ["FrameStackObservation(2)", "myworld:Twice"]
    typed = ["--env", "myworld:Untold", "--wrappers", *around]
    told = ["--mask", "10", "01", "00", "--share-encoder"]
    main([*SMALL_A2C, *typed, *told, "--total-steps=20"])
    out = capsys.readouterr().out
    assert "steps: 32 for 20, because an iteration has 16\n" in out
    resume = "--resume runs/a --env myworld:Untold --wrappers "
    resume += "'FrameStackObservation(2)' myworld:Twice"
    assert f"watch it:      literate-rl a2c {resume} --watch\n" in out
    assert "load it:       literate_rl.load('runs/a')\n" in out

    stored = json.loads((mine / "runs/a/settings.json").read_text())
    assert (stored["env"], stored["wrappers"]) == ("myworld:Untold", around)
    assert stored["mask"] == [[1, 0], [0, 1], [0, 0]]
    assert stored["config"]["share_encoder"] is True
    policy = load("runs/a")
    network = policy.network
    assert network.actor.network.encoder[0] is network.critic[0]
    world = load_env("runs/a", "myworld:Untold", around)
    assert all(x % 2 == 0 for x in evaluate(policy, world, 2))

    edit_config(mine / "runs/a", total_steps=64)
    before = snapshot(mine)
    for options, message in (
        ([], "hand over again --env myworld:Untold"),
        (typed[:2], "hand over again --wrappers"),
        ([*typed[:3], around[0]], "the run has --wrappers"),
        ([*typed, "--mask", "11", "11", "11"], "the run has --mask '[[1, 0]"),
    ):
        assert message in refusal(["a2c", "--resume", "runs/a", *options])
    assert snapshot(mine) == before
    main(["a2c", *shlex.split(resume)])
    assert int(table(mine / "runs/a")[-1][0]) == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--mask 10 2x", "mask must be a table of zeros and ones"),
        ("--mask 10 0", "mask must be a table of zeros and ones"),
        ("--mask 10 01", "mask is for hybrid actions and what learns them"),
        ("--wrappers FrameStack", "is it FrameStackObservation?"),
        ("--wrappers FrameStackObservation", "does not fit 'CartPole-v1': TypeError"),
        ("--share-encoder", "share_encoder must be False without an encoder"),
        ("--env nowhere:Pole", "No module named 'nowhere'"),
    ],
)
def test_what_does_not_fit_an_environment_leaves_no_run(
    tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    assert message in refusal([*SMALL_A2C, *options.split()])
    assert not list(tmp_path.iterdir())


def test_the_end_says_how_to_load_models_and_an_interrupt_does_not(mine, capsys):
    named = ["--qnet", "mynets:MyQNet"]
    main(["dqn", *named, "--name", "a", *TINY_DQN])
    out = capsys.readouterr().out
    assert "watch it:      literate-rl dqn --resume runs/a --qnet mynets:MyQNet" in out
    assert "load it:       literate_rl.load('runs/a', qnet=...)\n" in out
    edit_config(mine / "runs/a", total_steps=10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "fit", lambda *_: None)
        main(["dqn", "--resume", "runs/a", *named])
    out = capsys.readouterr().out
    assert "go on with" in out
    assert "load it" not in out


def test_a_share_of_an_encoder_has_no_meaning_for_dqn(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["dqn", "--share-encoder"])
    assert ended.value.code == 2
    assert "share-encoder" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_what_cannot_be_watched_is_said_before_the_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPLAY", "")
    gym.register("tests/Unseen-v0", Unseen)
    said = refusal(["ppo", "--env", "tests/Unseen-v0", "--watch", *TINY])
    assert said == "error: env 'tests/Unseen-v0' has no render mode 'rgb_array'"
    assert not [*tmp_path.iterdir()]


class Unseen(CartPoleEnv):
    """A pole that nobody can draw."""

    metadata = {"render_modes": []}

    def __init__(self, render_mode: None = None) -> None:
        super().__init__()
