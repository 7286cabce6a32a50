# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Playground
#
# **What does an agent do when somebody pushes it?** A film cannot say, because nobody can
# reach into it. So here the agent itself moves into the page. Its weights are a few
# thousand numbers, the physics of CartPole is six lines, and a browser computes both fifty
# times a second without noticing.
#
# Nobody has to read this page to follow the book. {doc}`/chapters/ppo` shows the agent that
# it trains with what stands here.

# %% tags=["export", "hide-input"]
"""Playground: a trained agent that runs in the page and can be pushed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from math import ceil, cos, degrees, floor, radians, sin
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import nn
from torch.nn import functional as F

from literate_rl.book.pictures import Axis, Mark, Picture, Widget, figure, plot
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.signatures import Count, check_that, checked

__all__ = ["PUSH", "play", "push_cartpole", "rounded"]

# %% [markdown]
# Nobody trained the agent below. Its weights are written by hand: it moves the cart to where
# the pole falls, and its critic thinks well of a pole that is upright.

# %%
import torch
from torch import nn

from literate_rl.book.playground import push_cartpole

actor, critic = nn.Sequential(nn.Linear(4, 2)), nn.Sequential()
for layer in nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 1):
    critic.append(layer)
with torch.no_grad():
    actor[0].bias.zero_()
    actor[0].weight.copy_(
        torch.tensor([[-0.1, -0.2, -2.0, -0.6], [0.1, 0.2, 2.0, 0.6]])
    )
    # The difference of two steps is a hill. Its top is the upright pole.
    critic[0].weight.copy_(torch.tensor([[0.0, 0.0, 8.0, 2.0]] * 2))
    critic[0].bias.copy_(torch.tensor([1.5, -1.5]))
    critic[2].weight.copy_(torch.tensor([[28.0, -28.0]]))
    critic[2].bias.zero_()
push_cartpole(actor, critic)

# %% [markdown]
# ## A push
#
# This agent withstands two pushes in a row. Most agents that were trained do not: nobody pushed
# them while they learned.
#
# A push changes the angular velocity of the pole, by a little more than two actions of the agent
# do. A game of a few hundred steps with pushes at given times can be played here, in Gymnasium.
# The page shows such a game where there is no JavaScript, and a chapter can check with it what it
# says about pushes.

# %% tags=["export"]
PUSH = 0.7  # radians a second


class Played(NamedTuple):
    """A game: the state before each step, the critic's value of it, and how it ended.

    Attributes:
        states: Rows of position, velocity, angle and angular velocity.
        values: One for each state.
        fell: Whether the episode ended before the last step.
    """

    states: list[list[float]]
    values: list[float]
    fell: bool


@checked
def play(
    actor: nn.Module,
    critic: nn.Module,
    pushes: Mapping[int, float],
    num_steps: Count = 300,
    seed: int = 1,
) -> Played:
    """Play CartPole greedily and push the pole now and then.

    Args:
        actor: Network from a state to two logits, of left and right.
        critic: Network from a state to its value.
        pushes: Changes of the angular velocity, in radians a second, by step.
        num_steps: The length of the game, if nothing ends it before.
        seed: Decides where it starts.
    """
    env: Any = gym.make("CartPole-v1").unwrapped
    env.reset(seed=seed)
    states: list[list[float]] = []
    values: list[float] = []
    over, both = False, nn.ModuleList([actor, critic])
    while not over and len(states) < num_steps:
        x, velocity, angle, spin = env.state
        env.state = (x, velocity, angle, spin + pushes.get(len(states), 0.0))
        # The networks were trained with the observation, which is the state as float32.
        obs = torch.tensor(env.state, dtype=torch.float32)
        with torch.no_grad(), eval_mode(both):
            action, value = actor(obs).argmax().item(), critic(obs).item()
        states.append([float(number) for number in env.state])
        values.append(value)
        over = env.step(action)[2]
    return Played(states, values, over)


# %% tags=["claims"]
from literate_rl.book.playground import PUSH, play

for seed in range(1, 11):
    game = play(actor, critic, {100: PUSH, 110: PUSH}, seed=seed)
    assert not game.fell, "it stands two pushes in a row"

# %% [markdown]
# ## A network as text
#
# Four digits of each weight are enough: they change the logits by a few thousandths.


# %% tags=["export"]
def in_digits(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight with four significant digits, which float64 holds."""
    return weight.detach().double().apply_(lambda number: float(f"{number:.4g}"))


@checked
def rounded(network: nn.Module) -> nn.Module:
    """Return a copy of a network whose weights have four significant digits."""
    network = copy.deepcopy(network).cpu()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(in_digits(weight))
    return network


def layers(network: nn.Module) -> list[tuple[list[list[float]], list[float]]]:
    """Return weight and bias of each linear layer, rounded.

    Between two linear layers there must be a tanh, and nothing else anywhere: what the
    network says is compared with what the script will compute.
    """
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    row = states = torch.eye(4)
    with torch.no_grad(), eval_mode(network):
        for layer in linear:
            row = F.linear(
                row if row is states else row.tanh(), layer.weight, layer.bias
            )
        same = row.shape == network(states).shape and row.allclose(network(states))
    check_that(same, f"network must be Linear, Tanh, …, Linear, got {network}")
    return [(in_digits(x.weight).tolist(), in_digits(x.bias).tolist()) for x in linear]


# %% [markdown]
# ## The physics
#
# On the other side a script computes the networks and the equations of Gymnasium's CartPole. A
# test holds the equations to Gymnasium and the networks to torch.

# %%
from IPython.display import Markdown

from literate_rl.book.pictures import modules

scripts = modules("push")
Markdown(f"```javascript\n{scripts['cartpole']}```")

# %% [markdown]
# ## The scene
#
# A metre is 83 units. Cart, pole and the two angles at which an episode ends are drawn once,
# in the middle of the track. The script only moves them, with the attribute `transform`.

# %% tags=["export"]
METRE, LIMIT = 83.0, radians(12)


def scene(state: list[float]) -> Picture:
    """Draw cart, pole and track."""
    picture = Picture(
        "A cart with a pole",
        "A cart stands on a track with two ends and carries a pole. Two dashed lines "
        "say how far the pole may lean.",
    )
    left, right = 220 - 2.4 * METRE, 220 + 2.4 * METRE
    picture.path(f"M{left:.1f},104v12M{right:.1f},104v12M{left:.1f},110H{right:.1f}")
    # The limits lean to both sides and are a little longer than the pole.
    across, up = (METRE + 8) * sin(LIMIT), (METRE + 8) * cos(LIMIT)
    limits = f"M220,86l{across:.1f},{-up:.1f}M220,86l{-across:.1f},{-up:.1f}"
    shift = f"translate({state[0] * METRE:.1f} 0)"
    turn = f"{shift} rotate({degrees(state[2]):.1f} 220 86)"
    for kind, d, move in (
        ("quiet lr-dashed", limits, shift),
        ("thick", "M195,110v-24h50v24Z", shift),
        ("accent lr-pole", f"M220,86v-{METRE:.0f}", turn),
    ):
        picture.marks.append(
            f'<path class="lr-{kind} lr-moves" transform="{move}" d="{d}"/>'
        )
    picture.reach(-14, 122)
    return picture


# %% [markdown]
# Below it are the values of the last 300 steps, and a dot for each push.

# %% tags=["export"]
WINDOW = 300


def curve(values: list[float], pushes: Mapping[int, float], high: Axis) -> Picture:
    """Draw the values of a game, the last one at the right end."""
    steps = [float(k - len(values) + 1) for k in range(len(values))]
    pushed = [k for k in pushes if k < len(values)]
    return plot(
        "What the critic thinks of it",
        "The value of the last 300 states as a line, which falls at each push.",
        Axis("steps before now", -WINDOW, 0, ticks=(-300, -200, -100, 0)),
        high,
        Mark("line thick", steps, values, "accent"),
        Mark("dots", [steps[k] for k in pushed], [values[k] for k in pushed], "second"),
        width=440,
        height=80,
    )


# %% [markdown]
# ## The page acts
#
# The script plays episode after episode. It stands still until the figure is in view, and
# for those who ask for reduced motion until they press a button. An episode ends as in the
# game, when the pole leans more than 12 degrees or when the cart leaves the track. But there
# is no limit of 500 steps.

# %%
Markdown(f"```javascript\n{scripts['push']}```")

# %% [markdown]
# What plays there stands still now and then. Other figures do too ({doc}`/chapters/book/train_here`), so their
# clock has a script of its own.

# %%
Markdown(f"```javascript\n{scripts['clock']}```")

# %% [markdown]
# ## The figure

# %% tags=["export"]
MOVING_STYLE = """
.lr-moving.lr-picture path { transition: none }
.lr-moving .lr-pole { stroke-width: 6 }
.lr-moving .lr-now { margin: 0.5rem 0; font-variant-numeric: tabular-nums }
.lr-moving output { margin-top: 0 }
"""

PLAY_STYLE = """
.lr-play .lr-panels { grid-template-columns: 1fr }
.lr-play .lr-panels svg { max-width: 32rem }
.lr-play .lr-controls { gap: 0.5rem }
.lr-play .lr-now { margin-bottom: 0 }
.lr-play:focus-visible { outline: 2px solid #d9541e; outline-offset: 4px }
"""


@checked
def push_cartpole(
    actor: nn.Module,
    critic: nn.Module,
    label: str = "An agent that balances a pole, to be pushed",
) -> Widget:
    """Let an agent play CartPole in the page, where the reader can push it.

    Args:
        actor: Network from a state to two logits, of left and right: linear layers
            with a tanh between two of them.
        critic: Network of the same kind from a state to its value.
        label: What the widget is for, in a few words.
    """
    actor, critic = rounded(actor), rounded(critic)
    # The picture to begin with: pushed once, and later twice in a row.
    pushes = {100: PUSH, 200: PUSH, 210: PUSH}
    states, values, fell = play(actor, critic, pushes)
    low, high = 10 * floor(min(values) / 10), 5 * ceil(max(values) / 5)
    axis = Axis("value", low, high, ticks=(low, high))
    panels = scene(states[-1]).svg() + curve(values, pushes, axis).svg()
    end = f"and {'fell' if fell else 'stood'} at step {len(values)}"
    words = f"It was pushed once at step 100 and twice from step 200 on, {end}."
    buttons = "".join(
        f'<button type="button">{name}</button>'
        for name in ("Push left", "Push right", "Play", "Start again")
    )
    inside = (
        f"<style>{MOVING_STYLE}{PLAY_STYLE}</style>"
        f'<div class="lr-panels">{panels}</div>'
        f'<div class="lr-controls" hidden>{buttons}</div>'
        f'<p class="lr-now">Step {len(values)}, value {values[-1]:.1f}</p>'
    )
    networks = {"actor": layers(actor), "critic": layers(critic)}
    data = {**networks, "push": PUSH, "metre": METRE, "low": low, "high": high}
    return figure(label, inside, words, "push", data, " lr-moving lr-play")


# %% [markdown]
# ## References
#
# The task is from Barto, Sutton and Anderson (1983). Its equations are those of
# [Gymnasium's CartPole](https://github.com/Farama-Foundation/Gymnasium/blob/v1.0.0/gymnasium/envs/classic_control/cartpole.py).
