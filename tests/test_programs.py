"""Programs: the page and the file are one; who copies a file has a working agent."""

import inspect
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import tangle
import torch
from test_tangle import new_root, replace

from benchmarks import learning
from benchmarks import programs as benchmark
from benchmarks.store import read_table
from literate_rl.apps import programs as shelf
from literate_rl.apps.commands import main
from literate_rl.apps.programs import (
    copied,
    drawn_batches,
    program_names,
    program_path,
    source,
)
from literate_rl.data.agents import Collector
from literate_rl.data.replay import ReplayBuffer
from literate_rl.learners import loop
from literate_rl.runs.runs import stored_runs

# Another environment of the same kind.
BOXES = "ddpg", "td3", "sac"
OTHER_ENVS = {
    "ppo": "Acrobot-v1",
    "discrete_sac": "Acrobot-v1",
    **dict.fromkeys(BOXES, "MountainCarContinuous-v0"),
}
CELL = """# %% tags=["program"] total_steps=50000
import math

env_id, seed, total_steps = "CartPole-v1", 1, 5_000
# A constant {eq}`circle`.
print(env_id, seed, total_steps, math.pi)
"""


def few(name):
    """Return few steps, but more than a program takes before its first update."""
    return 540 if name in BOXES else 1_040


def run(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-", *options]
    return subprocess.run(command, input=text, capture_output=True, text=True)


# --- From the page to the file --------------------------------------------------------


def test_a_program_is_written_and_kept_fresh(tmp_path):
    root = new_root(tmp_path)
    chapter = root / "chapters/coins.py"
    chapter.write_text(chapter.read_text() + "\n" + CELL)
    file = root / "src/literate_rl/programs/coins.py"
    assert file in tangle.sync(root)
    assert "# A constant.\n" in file.read_text(), "a file has no numbers of equations"
    assert run(file.read_text()).stdout.startswith("CartPole-v1 1 50000 3.14")
    given = ("--env", "Acrobot-v1", "--seed", "3", "--total-steps", "7")
    assert run(file.read_text(), *given).stdout.startswith("Acrobot-v1 3 7 3.14")
    assert "Coins on one page" in run(file.read_text(), "--help").stdout

    replace(file, "math.pi", "math.e")
    with pytest.raises(
        tangle.TangleError, match=r"programs/coins.py:1: edited by hand"
    ):
        tangle.sync(root)
    replace(file, "math.e", "math.pi")
    replace(chapter, '"program"', '"other"')
    tangle.sync(root)
    assert not file.exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (" total_steps=50000", "", "needs `total_steps"),
        ("env_id, seed,", "seed, env_id,", "has one line"),
    ],
)
def test_what_is_no_program_is_said(tmp_path, old, new, said):
    root = new_root(tmp_path)
    chapter = root / "chapters/coins.py"
    chapter.write_text(chapter.read_text() + "\n" + CELL.replace(old, new))
    with pytest.raises(tangle.TangleError, match=rf"coins.py:\d+: a program {said}"):
        tangle.sync(root)


# --- From the file to the reader ------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo", "from_nothing"])
def test_a_copy_is_a_script_that_learns_anywhere(name, tmp_path):
    file = tmp_path / f"my_{name}.py"
    file.write_text(copied(name, total_steps=1_040))
    command = [sys.executable, "-W", "error::DeprecationWarning", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("name", "env"), OTHER_ENVS.items())
def test_a_program_trains_in_another_environment(name, env):
    shelf.run_program(name, env=env, total_steps=few(name))


def test_from_nothing_needs_nothing_of_this_book():
    assert "literate_rl" not in copied("from_nothing").partition('"""\n')[2]


def test_copy_prints_at_once_and_imports_no_torch():
    code = (
        "import sys; from literate_rl.__main__ import main; main(); "
        "assert not {'torch', 'numpy', 'gymnasium'} & sys.modules.keys()"
    )
    command = [sys.executable, "-c", code, "copy", "ppo"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", copied("ppo"))
    assert "Generated" not in done.stdout


def test_what_is_no_program_is_said_with_those_that_are(capsys):
    with pytest.raises(SystemExit, match="no program 'sarsa'") as said:
        main(["copy", "sarsa"])
    assert all(name in str(said.value) for name in program_names())


def test_copy_takes_a_hyphen_and_hands_its_options_on(capsys):
    main(["copy", "discrete-sac", "--env=Other-v0", "--seed=7", "--total-steps=123"])
    wanted = copied("discrete_sac", env="Other-v0", seed=7, total_steps=123)
    assert capsys.readouterr().out == wanted
    assert "--env Other-v0 --seed 7 --total-steps 123" in wanted


def test_run_program_returns_what_it_made_and_prints_nothing(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mine", "--env", "Nothing-v0"])
    options = {"seed": 5, "total_steps": 600, "clip_ratio": 0.1}
    made = shelf.run_program("ppo_error", env="Acrobot-v1", **options)
    assert made.items() >= {"env_id": "Acrobot-v1", **options}.items()
    assert capsys.readouterr().out == ""
    assert sys.argv == ["mine", "--env", "Nothing-v0"]
    with pytest.raises(ValueError, match="'ppo_error' has no setting 'clip'"):
        shelf.run_program("ppo_error", total_steps=600, clip=0.1)


def test_source_shows_a_program_as_its_page_does():
    shown = source("ppo_error")
    assert repr(shown).startswith("import torch\n")
    assert 'env_id, seed, total_steps = "CartPole-v1", 1, 50_000\n' in repr(shown)
    assert "argparse" not in repr(shown)


# --- What does not count --------------------------------------------------------------


@pytest.mark.parametrize("name", program_names())
def test_where_a_step_led_counts_nothing_after_a_termination(name, monkeypatch):
    collect = Collector.collect

    def parameters_of(program):
        modules = [x for x in program.values() if isinstance(x, torch.nn.Module)]
        return [p for module in modules for p in module.parameters()]

    def trained(anything):
        def ended(self, act, num_steps):
            batch = collect(self, act, num_steps)
            return batch._replace(
                terminated=torch.ones_like(batch.terminated),
                next_obs=torch.full_like(batch.next_obs, anything),
            )

        monkeypatch.setattr(Collector, "collect", ended)
        return parameters_of(shelf.run_program(name, total_steps=few(name)))

    once, again = trained(0.0), trained(torch.inf)
    assert all(map(partial(torch.allclose, atol=1e-3), once, again))


@pytest.mark.parametrize(
    ("place", "bad"), [("mu", torch.nan), ("action", torch.inf), ("sigma", 1e-30)]
)
def test_an_argument_of_another_type_has_no_density(place, bad):
    """In hybrid PPO argument 0 is that of type 0, and argument 1 that of type 1."""
    parts = {
        "logit": torch.tensor([[0.3, 0.1, 0.5]]),
        "mu": torch.tensor([[0.2, 0.3]]),
        "sigma": torch.tensor([[0.5, 0.6]]),
        "action": torch.tensor([[0.0, 0.1, 0.2]]),
    }
    parts[place][:, -1] = bad
    logit, mu, sigma = (parts[x].requires_grad_() for x in ("logit", "mu", "sigma"))
    said = SimpleNamespace(
        action_type=logit, action_args=SimpleNamespace(mu=mu, sigma=sigma)
    )
    evaluate = shelf.run_program("hybrid_ppo", total_steps=1)["evaluate"]
    evaluate.__globals__["actor"] = lambda obs: said
    loss = sum(evaluate(None, parts["action"]))
    loss.backward()
    for number in (loss, logit.grad, mu.grad, sigma.grad):
        assert number.isfinite().all()
    assert not mu.grad[:, 1].any(), "nothing reaches its mean"


# --- Stored curves --------------------------------------------------------------------


def test_what_a_program_draws_is_noted_and_its_buffer_is_left_as_it_was():
    sample = ReplayBuffer.sample
    batches, names = drawn_batches("ddpg", total_steps=504)
    assert ReplayBuffer.sample is sample
    assert len(batches) == 4
    batch, state = batches[-1]
    assert len(batch.reward) == names["batch_size"]
    assert torch.equal(state, names["generator"].get_state()), "nothing is drawn later"


def test_a_stopped_benchmark_goes_on_and_a_changed_program_starts_over(
    tmp_path, monkeypatch
):
    def run_program(name, seed, total_steps):
        trained.append(seed)
        episodes = [(100 * k, float(k + seed)) for k in range(1, 31)]
        return {"env_id": "E-v0", "total_steps": 3_000, "episodes": episodes}

    trained = []
    monkeypatch.setattr(benchmark, "run_program", run_program)
    file = tmp_path / "x.py"
    monkeypatch.setattr(benchmark, "program_path", lambda name: file)
    file.write_text("a = 1  # one\n")
    benchmark.run("x", 1, tmp_path)
    file.write_text("# Another comment.\na = 1\n")
    benchmark.run("x", 2, tmp_path)
    (runs,) = stored_runs("program_x", tmp_path).values()
    assert runs.final.tolist() == [21.5, 22.5]
    assert trained == [1, 2]
    file.write_text("a = 2\n")
    benchmark.run("x", 1, tmp_path)
    assert len(stored_runs("program_x", tmp_path)["x"].final) == 1


@pytest.mark.parametrize("name", benchmark.SEEDS)
def test_stored_curves_are_those_of_the_program_as_it_stands(name):
    finals, origin = read_table(learning.LEARNING / f"program_{name}.csv")
    program, _ = benchmark.CHANGED.get(name, (name, {}))
    assert origin["code"] == benchmark.fingerprint(program_path(program))
    assert len(finals) == benchmark.SEEDS[name]


# --- Code that is shown again ---------------------------------------------------------


def test_source_is_code_of_the_package():
    shown = source(loop.OffPolicy.iterate)
    assert repr(shown).startswith("def iterate(")
    for line in shown.code.splitlines():
        assert line.strip() in inspect.getsource(loop)
    with pytest.raises(ValueError, match="only code of the package"):
        source(run)
