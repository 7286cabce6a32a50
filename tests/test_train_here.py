"""The training in the page: its scripts against the package, and in a browser."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect
from torch import nn

from literate_rl.book.pictures import Widget, script
from literate_rl.book.train_here import (
    MAZE,
    MAZE_SETTINGS,
    SETTINGS,
    learn_maze,
    train_cartpole,
    train_maze,
)
from literate_rl.data.agents import make_envs
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import stored_runs


@pytest.fixture(scope="module")
def widget() -> Widget:
    """Return the widget of PPO."""
    return train_cartpole()


# --- The script's mathematics ---------------------------------------------------------


def written(network: Any) -> list[Any]:
    """Return weights and biases as the script has them."""
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    return [[layer.weight.tolist(), layer.bias.tolist()] for layer in layers]


@pytest.mark.parametrize("clip", [0.2, None])
def test_three_iterations_are_those_of_the_package(show, monkeypatch, clip):
    draws: dict[str, list[Any]] = {"starts": [], "actions": [], "orders": []}

    class Started(gym.Wrapper):
        def reset(self, **options: Any):
            found = super().reset(**options)
            draws["starts"].append([float(x) for x in self.env.unwrapped.state])
            return found

    def permutation(*arguments: Any, **options: Any):
        draws["orders"].append((order := shuffle(*arguments, **options)).tolist())
        return order

    def collected():
        batch = collect()
        draws["actions"] += batch.action.flatten().tolist()
        return batch

    shuffle = torch.randperm
    monkeypatch.setattr(torch, "randperm", permutation)
    # Short episodes, so that the time limit ends some of them and the fall others.
    settings = SETTINGS | {"limit": 20}
    torch.manual_seed(1)
    envs = make_envs(
        lambda: Started(gym.make("CartPole-v1", max_episode_steps=20)),
        SETTINGS["num_envs"],
    )
    spaces = envs.single_observation_space, envs.single_action_space
    policy: Any = make_policy(*spaces, hidden=SETTINGS["hidden"])
    networks = policy.network.actor, policy.network.critic
    before = [*map(written, networks)]
    shared = {x.strip("_") for x in vars(PPOConfig())} & settings.keys()
    own = {"lambda_" if x == "lambda" else x: settings[x] for x in shared}
    rest = {"num_epochs": 3, "learning_rate": 5e-3, "clip_ratio": clip or 1e9}
    learner: Any = PPO(policy, envs, PPOConfig(anneal=False, **rest, **own))
    collect, learner.collect = learner.collect, collected
    found = [learner.iterate() for _ in range(3)]

    # A number below every probability draws the action 1, one above them the action 0.
    learned, outside = show().evaluate(
        f"""([settings, draws, networks, clip]) => {{
          {script("ppo")}
          const draw = {{start: () => draws.starts.shift(),
            action: () => 1 - 2 * draws.actions.shift(),
            order: () => draws.orders.shift()}};
          const iterate = learner(settings, draw, networks);
          const now = {{epochs: 3, clip: clip ?? Infinity, rate: 5e-3}};
          const outside = [1, 2, 3].map(() => iterate(now).outside);
          if (Object.values(draws).flat().length) throw new Error("draws are left");
          return [networks, outside];
        }}""",
        [settings, draws, before, clip],
    )
    for ours, theirs in zip(learned, map(written, networks), strict=True):
        for layer, right in zip(ours, theirs, strict=True):
            for numbers, wanted in zip(layer, right, strict=True):
                np.testing.assert_allclose(numbers, wanted, rtol=0, atol=1e-5)
    if clip:
        shares = [row["losses/clipfrac"] for row in found]
        assert outside == pytest.approx(shares, abs=1e-6)


def test_the_script_learns_the_maze_as_python_does(show):
    turned = 0.5, 0.1, 0.9
    names = ("step_size", "exploration", "discount")
    found = show().evaluate(
        f"""([settings, now]) => {{
          {script("q_learning")}
          const iterate = agent(settings, 3);
          let last_20 = [];
          const run = [...Array(240)].map(() => {{
            const {{steps, returns, walked}} = iterate(now);
            last_20 = [...last_20, ...returns].slice(-20);
            const sum = last_20.reduce((a, b) => a + b, 0);
            return [steps, sum / (last_20.length || 1), walked];
          }});
          return {{run, table: iterate({{...now, step_size: 0}}).table}};
        }}""",
        [MAZE_SETTINGS, dict(zip(names, turned, strict=True))],
    )
    learned = learn_maze(*turned, seed=3)
    np.testing.assert_allclose(found["table"], learned.table, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["run"], learned.run, rtol=0, atol=1e-12)


def curve(page: Page, seed: int, iterations: int, clip: str) -> list[list[float]]:
    """Train with a seed; return steps and share out of range of each iteration."""
    call = f"""([settings, seed, iterations]) => {{
      {script("ppo")}
      const iterate = agent(settings, seed);
      const now = {{epochs: 10, clip: {clip}, rate: 0.005}};
      return [...Array(iterations)].map(() => {{
        const {{steps, outside}} = iterate(now);
        return [steps, outside];
      }});
    }}"""
    return page.evaluate(call, [SETTINGS, seed, iterations])


@pytest.mark.parametrize(
    ("name", "clip"), [("clip 0.2", "0.2"), ("no clip", "Infinity")]
)
def test_the_stored_runs_are_those_of_the_script(show, name, clip):
    page, runs = show(), stored_runs("train_here")[name]
    for seed in (1, 2):
        found = np.array(curve(page, seed, 7, clip))
        assert found[-1, 0] == runs.steps[0]
        share = runs.watched["outside"][seed - 1, 0]
        assert found[:, 1].mean() == pytest.approx(share, rel=1e-3)


# --- In a browser ---------------------------------------------------------------------


def trained(page: Page, steps: int) -> None:
    """Wait until so many steps were learned from."""
    page.wait_for_function(
        "steps => parseInt(document.querySelector('.lr-now').textContent"
        ".replaceAll(',', '')) >= steps",
        arg=steps,
    )


def test_train_stop_and_reset(show, widget):
    page = show(widget)
    train, reset = (page.get_by_role("button", name=x) for x in ("Train", "Reset"))
    now = page.locator(".lr-now")
    assert not page.workers, "nothing is computed before somebody asks"
    train.click()
    trained(page, 768)
    # All arithmetic is in the worker.
    assert len(page.workers) == 1
    page.get_by_role("button", name="Stop").click()
    page.wait_for_timeout(500)
    stopped = str(now.text_content())
    page.wait_for_timeout(300)
    expect(now).to_have_text(stopped)
    # The run before stays as the other line.
    old, line = (page.locator(f".lr-line.lr-{x}").first for x in ("second", "accent"))
    ran = str(line.get_attribute("d"))
    reset.click()
    expect(now).to_have_text(re.compile("^0 steps, 0 s"))
    expect(line).to_have_attribute("d", "")
    assert str(old.get_attribute("d")).startswith(ran)
    # Train begins the next one, and Reset stops it while it is under way.
    train.click()
    trained(page, 256)
    reset.click()
    page.wait_for_timeout(300)
    expect(now).to_have_text(re.compile("^0 steps, 0 s"))


def test_the_sliders_reach_the_worker(show, widget):
    page = show(widget)
    clip = page.get_by_role("slider", name="clip")
    clip.press("End")
    expect(clip).to_have_attribute("aria-valuetext", "no clip")
    page.get_by_role("button", name="Train").click()
    trained(page, 256)
    # What is drawn for the first iteration is what the script computes.
    share = str(page.locator(".lr-line.lr-accent").last.get_attribute("d"))
    height = re.findall(r"M[\d.]+,([\d.]+)", share)[0]
    [[_, outside]] = curve(page, 1, 1, "Infinity")
    assert float(height) == pytest.approx(100 - 100 * outside, abs=0.06)


def test_a_training_ends_with_its_table_and_the_ring_walks_to_the_prize(
    show, monkeypatch
):
    monkeypatch.setattr("literate_rl.book.train_here.MAZE_TOTAL", 500)
    page = show(train_maze())
    page.get_by_role("slider", name="exploration").press("End")
    page.get_by_role("button", name="Train").click()
    expect(page.locator("output")).to_contain_text("The end, after 500 steps")
    page.wait_for_timeout(500)
    expect(page.locator(".lr-now")).to_contain_text("500 steps")
    ring, home = page.locator(".lr-moves"), "translate(142 130)"
    expect(ring).not_to_have_attribute("transform", home)
    # What is drawn is the table after so many steps.
    table = learn_maze(0.5, 1, 0.9, seed=1).table
    numbers = page.locator(".lr-number").all_text_contents()
    values = [max(x) for x, prize in zip(table, MAZE.prize, strict=True) if not prize]
    assert [float(x) for x in numbers] == pytest.approx(values, abs=0.051)


def test_without_a_browser_one_sees_stored_runs(widget):
    for html in (widget.html, train_maze().html):
        assert len(re.findall('lr-line lr-thick" d="M', html)) == 4
    for runs in stored_runs("train_here").values():
        assert f"{runs.final.mean():.0f}" in str(widget)
