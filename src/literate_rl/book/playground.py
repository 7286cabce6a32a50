# Generated from chapters/book/playground.py (edit there); digest 824f2b5197e5adff
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
