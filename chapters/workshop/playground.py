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
import json
from collections.abc import Mapping
from html import escape
from math import ceil, cos, degrees, floor, radians, sin
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import torch
from annotated_types import Ge
from torch import nn

from literate_rl.ground.networks import eval_mode
from literate_rl.by_hand.fast_forms import computes
from literate_rl.book.pictures import Axis, Mark, Picture, Widget, plot
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
    seed: Annotated[int, Ge(0)] = 1,
) -> Played:
    """Play CartPole greedily and push the pole now and then.

    Args:
        actor: Network from a state to two logits, of left and right.
        critic: Network from a state to its value.
        pushes: Changes of the angular velocity, in radians a second, by step.
        num_steps: The length of the game, if nothing ends it before.
        seed: Decides where it starts.
    """
    env: Any = gym.make("CartPole-v1", max_episode_steps=num_steps).unwrapped
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
def four_digits(number: float) -> float:
    """Round to four significant digits."""
    return float(f"{number:.4g}")


@checked
def rounded(network: nn.Module) -> nn.Module:
    """Return a copy of a network whose weights have four significant digits."""
    network = copy.deepcopy(network).cpu()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(weight.double().apply_(four_digits))
    return network


def layers(network: nn.Module) -> list[tuple[list[list[float]], list[float]]]:
    """Return weight and bias of each linear layer, rounded.

    Between two linear layers there must be a Tanh, and nothing else anywhere: no
    subclass, and no ``forward`` or hook of one's own.
    """
    children = list(network.children())
    wanted = [nn.Tanh if number % 2 else nn.Linear for number in range(len(children))]
    fits = (
        len(children) % 2 == 1
        and computes(network, nn.Sequential)
        and [type(child) for child in children] == wanted
        and all(map(computes, children, wanted))
    )
    names = [type(child).__name__ for child in children]
    words = f"network must be Linear, Tanh, …, Linear, as they are, got {names}"
    check_that(fits, words)
    found = []
    layer: Any
    for layer in children[::2]:
        weight, bias = layer.weight.tolist(), layer.bias.tolist()
        weight = [[four_digits(number) for number in row] for row in weight]
        found.append((weight, [four_digits(number) for number in bias]))
    return found


# %% [markdown]
# On the other side a layer is a sum for each of its outputs, and between two layers there is
# a tanh. The script returns the row that goes in and the row after each layer: whoever wants to
# learn needs them all ({doc}`train_here`). The last one is what the network says.

# %% tags=["export"]
FORWARD = """(layers, input) => layers.reduce((rows, [weight, bias], depth) => {
    const row = rows.at(-1), last = depth === layers.length - 1;
    const sums = weight.map((weights, i) => {
      let sum = bias[i];
      for (let j = 0; j < row.length; j++) sum += weights[j] * row[j];
      return last ? sum : Math.tanh(sum);
    });
    return [...rows, sums];
  }, [input])"""

# %% [markdown]
# ## The physics
#
# These are the equations of Gymnasium's CartPole, in its order: a cart of 1 kg, a pole of
# 0.1 kg and 1 m, and a step of 0.02 s, in which the old velocities move cart and pole. A
# test holds this script to Gymnasium and the one above to torch.

# %% tags=["export"]
PHYSICS = """([x, velocity, angle, spin], force) => {
    const sin = Math.sin(angle), cos = Math.cos(angle);
    const pull = (force + 0.05 * spin * spin * sin) / 1.1;
    const turn = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1));
    const speed_up = pull - 0.05 * turn * cos / 1.1;
    return [x + 0.02 * velocity, velocity + 0.02 * speed_up,
      angle + 0.02 * spin, spin + 0.02 * turn];
  }"""

# An episode ends where the cart leaves the track, or the pole leans too far.
FALLEN = """([x, , angle]) =>
    Math.abs(x) > 2.4 || Math.abs(angle) > 12 * 2 * Math.PI / 360"""

# %% [markdown]
# ## The scene
#
# A metre is 83 units. Cart, pole and the two angles at which an episode ends are drawn once,
# in the middle of the track. The script only moves them, with the attribute `transform`.

# %% tags=["export"]
METRE, LIMIT = 83.0, radians(12)


def moves(state: list[float]) -> list[str]:
    """Return where the marks of the scene are: the limits, the cart, the pole."""
    shift = f"translate({state[0] * METRE:.1f} 0)"
    return [shift, shift, f"{shift} rotate({degrees(state[2]):.1f} 220 86)"]


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
    marks = (
        (
            "quiet lr-dashed",
            f"M220,86l{across:.1f},{-up:.1f}M220,86l{-across:.1f},{-up:.1f}",
        ),
        ("thick", "M195,110v-24h50v24Z"),
        ("accent lr-pole", f"M220,86v-{METRE:.0f}"),
    )
    for (kind, d), move in zip(marks, moves(state), strict=True):
        picture.marks.append(
            f'<path class="lr-{kind} lr-moves" transform="{move}" d="{d}"/>'
        )
    picture.reach(-14, 122)
    return picture


# %% [markdown]
# The same in the page: the script puts the three marks where a state says.

# %% tags=["export"]
MOVE = """(marks, [x, , angle], metre) => {
    const shift = `translate(${(x * metre).toFixed(1)} 0)`;
    const lean = (angle * 180 / Math.PI).toFixed(1);
    [shift, shift, `${shift} rotate(${lean} 220 86)`].forEach((move, i) =>
      marks[i].setAttribute("transform", move));
  }"""

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

# %% tags=["export"]
SCRIPT = f"""((figure, {{actor, critic, push, metre, low, high}}) => {{
  const physics = {PHYSICS};
  const fallen = {FALLEN};
  const forward = {FORWARD};
  const move = {MOVE};
"""

# After the end the pole falls for as long as `falling` counts, and nobody acts.
SCRIPT += """  let state, steps, falling, kick = 0, history = [];
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
  const begin = () => {
    state = [0, 0, 0, 0].map(() => Math.random() / 10 - 0.05);
    steps = falling = 0;
  };
  const fall = () => {
    const [x, velocity, angle, spin] = physics(state, 0);
    const lying = Math.PI / 2;
    state = [clamp(x, -2.4, 2.4), velocity, clamp(angle, -lying, lying), spin];
    history.push([null, 0]);
    falling -= 1;
    if (falling === 0) begin();
  };
"""

# One step of the game. A push waits for the next step.
SCRIPT += """  const say = (words) => {
    figure.querySelector("output").textContent = words;
  };
  const step = () => {
    if (falling) return fall();
    state[3] += kick * push;
    const [value] = forward(critic, state).at(-1);
    const [left, right] = forward(actor, state).at(-1);
    history.push([value, kick]);
    kick = 0;
    state = physics(state, right > left ? 10 : -10);
    steps += 1;
    if (steps % 10 === 0) figure.querySelector(".lr-now").textContent =
      `Step ${steps}, value ${value.toFixed(1)}`;
    if (!fallen(state)) return;
    falling = 50;
    const off = Math.abs(state[0]) > 2.4;
    const why = off ? "the cart left the track" : "the pole leaned too far";
    say(`The last episode ended after ${steps} steps, at the value ` +
      `${value.toFixed(1)}: ${why}.`);
  };
"""

# Put all marks where they are now. A line is broken where nobody acted.
SCRIPT += """  const marks = figure.querySelectorAll(".lr-moves");
  const [line, dots] = [...figure.querySelectorAll("svg:last-child path")].slice(-2);
  const draw = () => {
    move(marks, state, metre);
    history = history.slice(-301);
    const points = history.map(([value, kicked], i) => ({value, kicked,
      at: `${(432 - 394 * (history.length - 1 - i) / 300).toFixed(1)},` +
        (80 * (high - clamp(value, low, high)) / (high - low)).toFixed(1)}));
    line.setAttribute("d", points.map(({value, at}, i) => value === null ? ""
      : (i && points[i - 1].value !== null ? "L" : "M") + at).join(""));
    dots.setAttribute("d", points.filter((point) => point.kicked)
      .map(({at}) => `M${at}h0`).join(""));
  };
"""

# Fifty steps a second, however often the screen is drawn. A figure that has left its
# page stops for good.
SCRIPT += """  let wanted = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  let seen = false, running = false, last = 0, behind = 0;
  const [to_left, to_right, toggle, again] = figure.querySelectorAll("button");
  const frame = (now) => {
    running = wanted && seen && figure.isConnected;
    if (!running) return;
    behind = Math.min(behind + now - last, 100);
    last = now;
    for (; behind >= 20; behind -= 20) step();
    draw();
    requestAnimationFrame(frame);
  };
  const go = () => {
    toggle.textContent = wanted ? "Pause" : "Play";
    if (running || !wanted || !seen) return;
    if (!history.length) say("No episode has ended yet.");
    running = true;
    last = performance.now();
    requestAnimationFrame(frame);
  };
"""

# Buttons and keys. A push wakes an agent that stands still.
SCRIPT += """  const shove = (way) => { kick += way; wanted = true; go(); };
  const pause = () => { wanted = !wanted; go(); };
  to_left.addEventListener("click", () => shove(-1));
  to_right.addEventListener("click", () => shove(1));
  toggle.addEventListener("click", pause);
  again.addEventListener("click", () => {
    begin();
    history = [];
    say("No episode has ended yet.");
    wanted = true;
    go();
  });
  figure.addEventListener("keydown", (event) => {
    const {key, target} = event;
    if (key === "ArrowLeft") shove(-1);
    else if (key === "ArrowRight") shove(1);
    else if (key === " " && target === figure) pause();
    else return;
    event.preventDefault();
  });
  begin();
  figure.querySelector(".lr-controls").hidden = false;
  new IntersectionObserver(([{isIntersecting}]) => {
    seen = isIntersecting;
    go();
  }, {threshold: 0.2}).observe(figure);
})"""

# %% [markdown]
# The figure takes the focus, so that the arrow keys push. JupyterLab keeps keys for itself
# unless an element asks it not to.

# %% tags=["export"]
PLAY_STYLE = """
.lr-play .lr-panels { grid-template-columns: 1fr }
.lr-play .lr-panels svg { max-width: 32rem }
.lr-play.lr-picture path { transition: none }
.lr-play .lr-pole { stroke-width: 6 }
.lr-play.lr-picture button { width: auto; padding: 0.3rem 0.9rem; min-height: 2rem }
.lr-play .lr-controls { gap: 0.5rem }
.lr-play .lr-now { margin: 0.5rem 0 0; font-variant-numeric: tabular-nums }
.lr-play output { margin-top: 0 }
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
    now = f"Step {len(values)}, value {values[-1]:.1f}"
    words = f"It was pushed once at step 100 and twice from step 200 on, {end}."

    networks = {"actor": layers(actor), "critic": layers(critic)}
    data = {**networks, "push": PUSH, "metre": METRE, "low": low, "high": high}
    call = f"{SCRIPT}(document.currentScript.parentElement, {packed(data)});"
    buttons = "".join(
        f'<button type="button">{name}</button>'
        for name in ("Push left", "Push right", "Play", "Start again")
    )
    return Widget(
        f"<style>{PLAY_STYLE}</style>"
        f'<figure class="lr-picture lr-play" role="group" aria-label="{escape(label)}" '
        f'tabindex="0" data-lm-suppress-shortcuts="true">'
        f'<div class="lr-panels">{panels}</div>'
        f'<div class="lr-controls" hidden>{buttons}</div>'
        f'<p class="lr-now">{now}</p><output>{words}</output>'
        f"<script>{call}</script></figure>",
        f"{label}: {words}",
    )


def packed(data: Any) -> str:
    """Write data for a script, without spaces."""
    return json.dumps(data, separators=(",", ":"))


# %% [markdown]
# ## References
#
# The task is from Barto, Sutton and Anderson (1983). Its equations are those of
# [Gymnasium's CartPole](https://github.com/Farama-Foundation/Gymnasium/blob/v1.0.0/gymnasium/envs/classic_control/cartpole.py).
