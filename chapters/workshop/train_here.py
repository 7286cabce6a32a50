# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A training that runs in the page
#
# **Can a reader train an agent without installing anything?** CartPole is small: its physics is
# six lines, two networks of 16 units are enough, and PPO with backpropagation by hand is about a
# hundred lines of JavaScript. A browser makes 40,960 steps of it in some ten seconds, and the reader
# may turn the settings while it learns. Q-learning with a table takes some thirty lines.
#
# Nobody has to read this page to follow the book. {doc}`/chapters/ppo_error` and {doc}`/chapters/dqn`
# ask their questions with the two figures that are made here. You need {doc}`/chapters/ppo` and
# {doc}`/chapters/dqn` for the algorithms and {doc}`playground` for physics, networks and the scene.

# %% tags=["export", "hide-input"]
"""Train here: PPO and Q-learning in the page, with settings that the reader turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from math import sqrt
from typing import Any, NamedTuple

from literate_rl.book.pictures import Axis, Mark, Picture, Widget, plot
from literate_rl.book.playground import (
    FALLEN,
    FORWARD,
    METRE,
    MOVE,
    PHYSICS,
    packed,
    scene,
)
from literate_rl.runs.runs import stored_runs
from literate_rl.ground.signatures import Fraction, checked

__all__ = ["SETTINGS", "Learned", "learn_maze", "train_cartpole", "train_maze"]

# %% [markdown]
# Press **Train**.

# %%
from literate_rl.book.train_here import train_cartpole, train_maze

train_cartpole()

# %%
train_maze()

# %% [markdown]
# ## Chance
#
# Everything random comes from one generator, *mulberry32*, which is one number and six lines. So a
# seed decides a run. `chance` draws what PPO needs: where an episode starts, a number between 0
# and 1 for each action, the order of the samples, and the weights of a network. Whoever wants to
# decide these hands over functions of his own, and a test does: it gives the script the draws of
# the package's `PPO` and compares.

# %% tags=["export"]
CHANCE = """(seed) => {
    const random = () => {
      seed = seed + 0x6D2B79F5 | 0;
      let mixed = Math.imul(seed ^ seed >>> 15, 1 | seed);
      mixed = mixed + Math.imul(mixed ^ mixed >>> 7, 61 | mixed) ^ mixed;
      return ((mixed ^ mixed >>> 14) >>> 0) / 2 ** 32;
    };
"""

# The order is a shuffle: each place, from the last to the first, swaps with one before.
CHANCE += """    const order = (count) => {
      const rows = Array.from({length: count}, (_, i) => i);
      for (let i = count - 1; i > 0; i--) {
        const j = Math.floor(random() * (i + 1));
        [rows[i], rows[j]] = [rows[j], rows[i]];
      }
      return rows;
    };
"""

# Weights have the standard deviation of one over the root of the inputs, and those of
# the last layer are `gain` times as large. A small gain makes a policy that tries both
# actions.
CHANCE += """    const network = (sizes, gain) => sizes.slice(1).map((outputs, i) => {
      const inputs = sizes[i], last = i === sizes.length - 2;
      const bound = (last ? gain : 1) * Math.sqrt(3 / inputs);
      const row = () => Float64Array.from({length: inputs},
        () => bound * (2 * random() - 1));
      const weight = Array.from({length: outputs}, row);
      return [weight, new Float64Array(outputs)];
    });
    const start = () => [0, 0, 0, 0].map(() => random() / 10 - 0.05);
    return {start, action: random, order, network};
  }"""

# %% [markdown]
# ## Backwards
#
# PyTorch finds gradients by itself. Here it takes a dozen lines, because a network is always the
# same: a sum, and a tanh before the next sum. `rows` is what the forward pass kept, and `slope` is
# the derivative of the loss by what the last layer said. Each layer adds to the gradients of its
# weights, and hands the slope down to the layer below. The derivative of $h = \tanh(x)$ is $1 -
# h^2$.

# %% tags=["export"]
BACKWARD = """(layers, gradients, rows, slope) => {
    for (let depth = layers.length - 1; depth >= 0; depth--) {
      const [weight] = layers[depth], [by_weight, by_bias] = gradients[depth];
      const row = rows[depth], below = new Float64Array(row.length);
      slope.forEach((by_sum, i) => {
        by_bias[i] += by_sum;
        for (let j = 0; j < row.length; j++) {
          by_weight[i][j] += by_sum * row[j];
          below[j] += by_sum * weight[i][j];
        }
      });
      slope = below.map((by_row, j) => by_row * (1 - row[j] ** 2));
    }
  }"""

# %% [markdown]
# ## PPO once more
#
# `learner` takes settings, the draws and two networks, and returns a function that makes one
# iteration. Epochs, clip range and learning rate come with each call, so they may change while it
# learns.

# %% tags=["export"]
# Weights and biases of both networks become one list of arrays. Adam has two moments
# for each number and begins with zeros.
LEARNER = f"""(settings, draw, [actor, critic]) => {{
    const physics = {PHYSICS};
    const fallen = {FALLEN};
    const forward = {FORWARD};
    const backward = {BACKWARD};
"""
LEARNER += """    const {gamma, lambda, limit, num_envs} = settings;
    const zeros = (network) => network.map(([weight, bias]) =>
      [weight.map((row) => row.map(() => 0)), bias.map(() => 0)]);
    const arrays = (networks) =>
      networks.flat().flatMap(([weight, bias]) => [...weight, bias]);
    const networks = [actor, critic], gradients = networks.map(zeros);
    const [parameters, by_parameters] = [networks, gradients].map(arrays);
    const [first, second] = [0, 1].map(() => arrays(networks.map(zeros)));
    let updates = 0, steps = 0;
    const envs = Array.from({length: num_envs},
      () => ({state: draw.start(), length: 0}));
"""

# What the networks say. Observations are the state in single precision, as Gymnasium's.
LEARNER += """    const seen = (state) => state.map(Math.fround);
    const value = (obs) => forward(critic, obs).at(-1)[0];
    const log_softmax = (logits) => {
      const top = Math.max(...logits);
      const sum = logits.reduce((sum, logit) => sum + Math.exp(logit - top), 0);
      return logits.map((logit) => logit - top - Math.log(sum));
    };
    const log_probs = (obs) => log_softmax(forward(actor, obs).at(-1));
"""

# 1. Collect. A sample is one step in one environment. An episode ends with a fall, or
# at the time limit: the first has no future, the second has one.
LEARNER += """    const take_step = (env, returns) => {
      const obs = seen(env.state), log_prob = log_probs(obs);
      const action = draw.action() < Math.exp(log_prob[1]) ? 1 : 0;
      const state = physics(env.state, action ? 10 : -10);
      const terminated = fallen(state), truncated = env.length + 1 === limit;
      const done = terminated || truncated;
      const sample = {obs, action, done, old: log_prob[action], value: value(obs),
        next_value: terminated ? 0 : value(seen(state))};
      if (done) returns.push(env.length + 1);
      env.state = done ? draw.start() : state;
      env.length = done ? 0 : env.length + 1;
      return sample;
    };
"""

# 2. Look back. The samples lie in the order of time, all environments of one step side
# by side, so the next step of an environment is `num_envs` places further.
LEARNER += """    const look_back = (samples) => {
      for (let i = samples.length - 1; i >= 0; i--) {
        const sample = samples[i], later = samples[i + num_envs];
        const td_error = 1 + gamma * sample.next_value - sample.value;
        const passed_on = later && !sample.done ? later.adv : 0;
        sample.adv = td_error + gamma * lambda * passed_on;
        sample.target = sample.adv + sample.value;
      }
    };
"""

# 3. Learn. The slope of the clipped surrogate over the log-probability is the ratio
# times the advantage where it is alive, and zero where it is not. The slope of a
# log-probability over its own logit is one minus the probability, and over the other
# logit it is minus the other probability.
LEARNER += """    const ratio_of = (log_prob, {action, old}) =>
      Math.exp(Math.min(20, Math.max(-20, log_prob[action] - old)));
    const slopes = (sample, logits, adv, clip) => {
      const log_prob = log_softmax(logits), prob = log_prob.map(Math.exp);
      const entropy = -prob.reduce((sum, p, i) => sum + p * log_prob[i], 0);
      const ratio = ratio_of(log_prob, sample);
      const alive = adv > 0 ? ratio <= 1 + clip : ratio >= 1 - clip;
      return prob.map((p, i) => settings.entropy_weight * p * (log_prob[i] + entropy)
        - (alive ? ratio * adv : 0) * ((i === sample.action) - p));
    };
    const learn = (part, clip, rate) => {
      const mean = part.reduce((sum, {adv}) => sum + adv, 0) / part.length;
      const spread = part.reduce((sum, {adv}) => sum + (adv - mean) ** 2, 0);
      const deviation = Math.sqrt(spread / part.length) + 1e-8;
      by_parameters.forEach((array) => array.fill(0));
      for (const sample of part) {
        const adv = (sample.adv - mean) / deviation;
        const acted = forward(actor, sample.obs), judged = forward(critic, sample.obs);
        const slope = slopes(sample, acted.at(-1), adv, clip);
        const miss = judged.at(-1)[0] - sample.target;
        backward(actor, gradients[0], acted, slope.map((x) => x / part.length));
        backward(critic, gradients[1], judged,
          [settings.value_weight * miss / part.length]);
      }
      step_downhill(rate);
    };
"""

# One step of Adam, with a gradient whose norm is at most the bound.
LEARNER += """    const step_downhill = (rate) => {
      const squares = by_parameters.map((array) =>
        array.reduce((sum, slope) => sum + slope * slope, 0));
      const norm = Math.sqrt(squares.reduce((a, b) => a + b));
      const scale = Math.min(1, settings.max_grad_norm / (norm + 1e-6));
      updates += 1;
      const [grown, grown_2] = [1 - 0.9 ** updates, 1 - 0.999 ** updates];
      parameters.forEach((array, i) => {
        const [by, m, v] = [by_parameters[i], first[i], second[i]];
        for (let j = 0; j < array.length; j++) {
          const slope = by[j] * scale;
          m[j] = 0.9 * m[j] + 0.1 * slope;
          v[j] = 0.999 * v[j] + 0.001 * slope ** 2;
          array[j] -= rate * m[j] / grown / (Math.sqrt(v[j] / grown_2) + 1e-5);
        }
      });
    };
"""

# The loop around them. At the end each ratio says how far the policy has moved. Where
# nothing is clipped, 0.2 is the measure.
LEARNER += """    return ({epochs, clip, rate}) => {
      const returns = [], samples = [];
      for (let t = 0; t < settings.num_steps; t++) for (const env of envs)
        samples.push(take_step(env, returns));
      steps += samples.length;
      look_back(samples);
      const size = samples.length / settings.num_minibatches;
      for (let epoch = 0; epoch < epochs; epoch++) {
        const order = draw.order(samples.length);
        for (let i = 0; i < order.length; i += size)
          learn(order.slice(i, i + size).map((row) => samples[row]), clip, rate);
      }
      const range = clip === Infinity ? 0.2 : clip;
      const outside = samples.filter((sample) =>
        Math.abs(ratio_of(log_probs(sample.obs), sample) - 1) > range);
      return {steps, returns, outside: outside.length / samples.length, actor};
    };
  }"""

# %% [markdown]
# ## Settings
#
# A rollout is small, 256 steps, so that something happens in the page every few hundredths of a
# second. The learning rate is higher than in {doc}`/chapters/ppo`, and it does not fall. About 25
# settings of network, rollout, minibatches and learning rate were tried, with and without the
# clip, on the seeds 100 to 111. On the seeds 1 to 10 they were run once.

# %% tags=["export"]
SETTINGS = {
    "hidden": 16,
    "limit": 500,
    "num_envs": 8,
    "num_steps": 32,
    "num_minibatches": 8,
    "gamma": 0.98,
    "lambda": 0.8,
    "entropy_weight": 0.01,
    "value_weight": 0.5,
    "max_grad_norm": 0.5,
}
TOTAL = 160 * 256  # steps, after which nothing more is learned

# %% [markdown]
# `agent` puts the parts together: it makes the draws of a seed and both networks.

# %% tags=["export"]
AGENT = f"""(settings, seed) => {{
    const draw = ({CHANCE})(seed), hidden = settings.hidden;
    const networks = [[2, 0.01], [1, 1]].map(([outputs, gain]) =>
      draw.network([4, hidden, hidden, outputs], gain));
    return ({LEARNER})(settings, draw, networks);
  }}"""

# %% [markdown]
# ## The agent beside its training
#
# Beside the training the agent as it is now plays, fifty steps a second. It takes the more probable
# action. `stage` holds what only this figure has: how to begin, what to take from the worker, a
# step of the game, the drawing, and the words. The other figure has a stage of its own.

# %% tags=["export"]
STAGE = f"""(figure, {{metre}}) => {{
    const physics = {PHYSICS};
    const fallen = {FALLEN};
    const forward = {FORWARD};
    const move = {MOVE};
"""
STAGE += """    const marks = figure.querySelectorAll(".lr-moves");
    let state, actor, stood, solved;
    const begin = () => {
      [state, actor, stood, solved] = [[0, 0, 0, 0], null, false, false];
    };
    const take = (found) => { actor = found.actor; return found.outside; };
    const play = () => {
      if (!actor) return;
      const [left, right] = forward(actor, state).at(-1);
      state = physics(state, right > left ? 10 : -10);
      if (fallen(state)) state = [0, 0, 0, 0].map(() => Math.random() / 10 - 0.05);
    };
    const draw = () => move(marks, state, metre);
    const words = (mean, share) =>
      `return ${mean.toFixed(0)}, ${(100 * share).toFixed(0)} % out of range`;
    const news = (returns, last_20, mean) => {
      if (!stood && returns.includes(500)) {
        stood = true;
        return "The first pole that stood for 500 steps";
      }
      if (solved || last_20.length < 20 || mean < 475) return "";
      solved = true;
      return `It stands: a mean return of ${mean.toFixed(0)} over the last 20 episodes`;
    };
    return {pace: 20, begin, take, play, draw, words, news};
  }"""

# %% [markdown]
# ## A maze and a table
#
# The maze has 29 cells, and the agent begins at `s`. There is a small prize near it and a large one
# further away. A step against a wall leads nowhere, and a prize ends the episode. For a script the
# maze is three things: where each of the four actions leads, what each cell pays, and the start.
# Seven mazes were tried, on the seeds 1 to 10, until one was found that is quickly learned.


# %% tags=["export"]
class Maze(NamedTuple):
    """A maze as a table.

    Attributes:
        cells: Row and column of each cell.
        next: The cells to which the actions up, right, down and left lead.
        prize: What a cell pays; a prize ends the episode.
        start: Where episodes begin.
    """

    cells: list[tuple[int, int]]
    next: list[list[int]]
    prize: list[int]
    start: int


def maze_of(rows: Sequence[str], prizes: Mapping[str, int]) -> Maze:
    """Read a maze: ``#`` is a wall, ``s`` the start, other letters are prizes."""
    signs = {
        (y, x): sign
        for y, row in enumerate(rows)
        for x, sign in enumerate(row)
        if sign != "#"
    }
    place = {cell: number for number, cell in enumerate(signs)}
    ways = ((-1, 0), (0, 1), (1, 0), (0, -1))
    leads = [
        [place.get((y + down, x + right), here) for down, right in ways]
        for (y, x), here in place.items()
    ]
    pays = [prizes.get(sign, 0) for sign in signs.values()]
    return Maze(list(signs), leads, pays, list(signs.values()).index("s"))


ROWS = ("........", ".##.###.", "n.s.#.#f", ".##...#.", "...#....")
MAZE = maze_of(ROWS, {"n": 1, "f": 10})
MAZE_SETTINGS = {
    "next": MAZE.next,
    "prize": MAZE.prize,
    "start": MAZE.start,
    "limit": 100,
    "num_steps": 25,
}
MAZE_TOTAL = 240 * 25

# %% [markdown]
# ## Q-learning once more
#
# Here is the whole learner. It moves the value of the action that was taken by a share, the step size,
# towards the reward plus the discounted value of the best next action. It explores with a random
# action now and then, and chooses among equally good ones by chance. `best` is the walker beside the
# training, who takes the first of the best actions. What it gets goes into the second plot.

# %% tags=["export"]
BEST = "(values) => values.indexOf(Math.max(...values))"

MAZE_AGENT = f"""({{next, prize, start, limit, num_steps}}, seed) => {{
    const random = ({CHANCE})(seed).action, best = {BEST};
"""
MAZE_AGENT += """    const table = next.map(() => [0, 0, 0, 0]);
    let steps = 0, state = start, length = 0;
    const choose = (values, explore) => {
      const top = Math.max(...values);
      const good = [0, 1, 2, 3].filter((a) => explore || values[a] === top);
      return good[Math.floor(random() * good.length)];
    };
    const take_step = ({step_size, exploration, discount}, returns) => {
      const values = table[state], action = choose(values, random() < exploration);
      const later = next[state][action], reward = prize[later];
      const future = reward ? 0 : Math.max(...table[later]);
      values[action] += step_size * (reward + discount * future - values[action]);
      [state, length, steps] = [later, length + 1, steps + 1];
      if (!reward && length < limit) return;
      returns.push(reward);
      [state, length] = [start, 0];
    };
    const walk = () => {
      let place = start;
      for (let i = 0; i < limit && !prize[place]; i++)
        place = next[place][best(table[place])];
      return prize[place];
    };
    return (now) => {
      const returns = [];
      for (let i = 0; i < num_steps; i++) take_step(now, returns);
      return {steps, returns, table, walked: walk()};
    };
  }"""

# %% [markdown]
# The same in Python, number for number: the picture for those who have no JavaScript is made with
# it, the claims of {doc}`/chapters/dqn` are tested with it, and a test holds the script to it.


# %% tags=["export"]
def uniform(seed: int) -> Iterator[float]:
    """Yield the numbers that ``CHANCE`` draws."""
    low = 2**32 - 1
    while True:
        seed = (seed + 0x6D2B79F5) & low
        mixed = (seed ^ seed >> 15) * (1 | seed) & low
        mixed ^= (mixed + (mixed ^ mixed >> 7) * (61 | mixed)) & low
        yield (mixed ^ mixed >> 14) / 2**32


def walk(table: Sequence[Sequence[float]], limit: int = 100) -> int:
    """Return the prize to which the first of the best actions lead, or 0."""
    place = MAZE.start
    while limit and not MAZE.prize[place]:
        values = table[place]
        place, limit = MAZE.next[place][values.index(max(values))], limit - 1
    return MAZE.prize[place]


class Learned(NamedTuple):
    """What was learned in the maze.

    Attributes:
        table: The values of the four actions in each cell.
        run: After every 25 steps: steps, the mean return of the last 20 episodes, and
            what the walker gets.
    """

    table: list[list[float]]
    run: list[tuple[int, float, int]]


@checked
def learn_maze(
    step_size: Fraction, exploration: Fraction, discount: Fraction, seed: int
) -> Learned:
    """Learn the maze as the page does, from nothing to the end.

    Args:
        step_size: Share of the way that a value moves towards its target.
        exploration: Probability of a random action.
        discount: The discount factor.
        seed: Decides the run.
    """
    draw, limit = uniform(seed), MAZE_SETTINGS["limit"]
    table = [[0.0] * 4 for _ in MAZE.next]
    state, length = MAZE.start, 0
    returns: list[int] = []
    run: list[tuple[int, float, int]] = []
    for step in range(1, MAZE_TOTAL + 1):
        explore, values = next(draw) < exploration, table[state]
        top = max(values)
        good = [a for a in range(4) if explore or values[a] == top]
        action = good[int(next(draw) * len(good))]
        later = MAZE.next[state][action]
        reward = MAZE.prize[later]
        future = 0.0 if reward else max(table[later])
        values[action] += step_size * (reward + discount * future - values[action])
        state, length = later, length + 1
        if reward or length == limit:
            returns.append(reward)
            state, length = MAZE.start, 0
        if step % 25 == 0:
            last_20 = returns[-20:]
            run.append((step, sum(last_20) / max(1, len(last_20)), walk(table)))
    return Learned(table, run)


# %% [markdown]
# In the picture each cell has four triangles, one for each action; the stronger its colour, the larger
# its value. The number is the largest of the four. The ring is the walker.

# %% tags=["export"]
CELL = 52


def strength(value: float) -> str:
    """Return how strong the colour of a value is; the number on it stays readable."""
    return f"{0.7 * sqrt(value / 10):.2f}"


def maze_scene(table: Sequence[Sequence[float]]) -> Picture:
    """Draw the maze with the values of its actions."""
    picture = Picture(
        "A table of values, drawn in its maze",
        "A maze with a prize of 1 near the start and a prize of 10 further away. Each "
        "cell has a triangle for each of its four actions: the stronger its colour, "
        "the larger the value. The number is the largest value of the cell.",
    )
    half = CELL // 2
    corners = [(-half, -half), (half, -half), (half, half), (-half, half)]
    picture.path(f"M12,0h{8 * CELL}v{5 * CELL}h-{8 * CELL}Z", "quiet")
    for (row, column), values, prize in zip(MAZE.cells, table, MAZE.prize, strict=True):
        x, y = 12 + CELL * column + half, CELL * row + half
        for action, value in enumerate(values):
            (a, b), (c, d) = corners[action], corners[(action + 1) % 4]
            picture.marks.append(
                f'<path class="lr-accent lr-value" fill-opacity="{strength(value)}" '
                f'd="M{x},{y}l{a},{b}l{c - a},{d - b}Z"/>'
            )
        picture.path(f"M{x - half},{y - half}h{CELL}v{CELL}h-{CELL}Z", "faint")
        words = str(prize) if prize else f"{max(values):.1f}"
        kind = "lr-second lr-prize" if prize else "lr-number"
        picture.marks.append(
            f'<text class="{kind}" text-anchor="middle" x="{x}" y="{y + 5}">'
            f"{words}</text>"
        )
    for row, signs in enumerate(ROWS):
        for column in (k for k, sign in enumerate(signs) if sign == "#"):
            corner = f"M{12 + CELL * column},{CELL * row}"
            picture.path(f"{corner}h{CELL}v{CELL}h-{CELL}Z", "quiet", "wall")
    row, column = MAZE.cells[MAZE.start]
    at = f"translate({12 + CELL * column + half} {CELL * row + half})"
    picture.marks.append(
        f'<path class="lr-second lr-thick lr-moves" transform="{at}" '
        'd="M-19,0a19,19 0 1 0 38,0a19,19 0 1 0 -38,0"/>'
    )
    picture.reach(-2, 5 * CELL + 2)
    return picture


MAZE_STAGE = f"""(figure, {{cells, settings: {{next, prize, start}}}}) => {{
    const best = {BEST};
"""
MAZE_STAGE += """    const marks = figure.querySelectorAll(".lr-value");
    const numbers = figure.querySelectorAll(".lr-number, .lr-prize");
    const ring = figure.querySelector(".lr-moves");
    let state, table, walked;
    const begin = () => {
      [state, table, walked] = [start, next.map(() => [0, 0, 0, 0]), 0];
    };
    const take = (found) => { table = found.table; return found.walked; };
    const play = () => {
      state = prize[state] ? start : next[state][best(table[state])];
    };
    const draw = () => {
      const [x, y] = cells[state];
      ring.setAttribute("transform", `translate(${x} ${y})`);
      table.flat().forEach((value, i) => {
        const strength = 0.7 * Math.sqrt(value / 10);
        marks[i].setAttribute("fill-opacity", strength.toFixed(2));
      });
      table.forEach((values, i) => {
        if (!prize[i]) numbers[i].textContent = Math.max(...values).toFixed(1);
      });
    };
    const words = (mean, now) =>
      `return ${mean.toFixed(1)} while learning, ${now} for the best actions`;
    const news = (returns, last_20, mean, now) => {
      if (now === walked) return "";
      walked = now;
      return "The best actions now lead to "
        + (now ? "the prize of " + now : "no prize");
    };
    return {pace: 150, begin, take, play, draw, words, news};
  }"""

# %% [markdown]
# ## What the reader turns
#
# Three sliders for each agent. PPO's clip range has an end at which there is no clip.

# %% tags=["export"]
NO_CLIP = "no clip"
Sliders = Mapping[str, tuple[Sequence[Any], Any]]
SLIDERS: Sliders = {
    "epochs": ((1, 2, 3, 5, 10, 20), 10),
    "clip": ((0.05, 0.1, 0.2, 0.4, NO_CLIP), 0.2),
    "learning rate": ((0.0005, 0.001, 0.002, 0.005, 0.01), 0.005),
}
MAZE_SLIDERS: Sliders = {
    "step size α": ((0.1, 0.2, 0.5, 1), 0.5),
    "exploration ε": ((0, 0.1, 0.3, 0.6, 1), 0.1),
    "discount γ": ((0.5, 0.8, 0.9, 0.99, 1), 0.9),
}


def controls(sliders: Sliders) -> str:
    """Return buttons, sliders and the field for the seed."""
    rows = "".join(
        f'<label>{name} <input type="range" min="0" max="{len(values) - 1}" '
        f'value="{values.index(value)}"> <b aria-hidden="true">{value}</b></label>'
        for name, (values, value) in sliders.items()
    )
    return (
        '<button type="button">Train</button><button type="button">Reset</button>'
        '<label class="lr-seed">seed <input type="number" min="1" max="9999" value="1">'
        f"</label>{rows}"
    )


# %% [markdown]
# ## What there is without JavaScript
#
# Two curves in each of two plots: means of ten runs each. PPO's are stored, with the clip and without
# (`python -m benchmarks.train_here` makes them, with this very script); those of the maze are
# made on the spot, with an exploration of 1 and of 0.1. The script in the page clears the plots and
# draws the reader's own run, and beside it the run before.


# %% tags=["export"]
HEIGHT = 100
PANELS = (
    (
        "Return",
        "The mean return of the last 20 episodes over the steps, up to 500.",
        500,
        (0, 250, 500),
    ),
    (
        "Share of ratios out of range",
        "The share of the ratios that are out of the clip range after learning.",
        1,
        (0, 0.5, 1),
    ),
)
MAZE_PANELS = (
    (
        "Return while learning",
        "The mean return of the last 20 episodes over the steps, up to 10.",
        10,
        (1, 10),
    ),
    (
        "Return of the best actions",
        "The prize to which the best actions of the table lead, over the steps.",
        10,
        (1, 10),
    ),
)


def plots(
    panels: Sequence[Any], x: Axis, run: Sequence[Any], before: Sequence[Any]
) -> list[Picture]:
    """Draw two runs, each of steps and one row for each panel."""
    drawn = []
    for k, (title, alt, high, marked) in enumerate(panels, 1):
        first = Mark("line thick", run[0], run[k], "accent")
        second = Mark("line thick", before[0], before[k], "second")
        y = Axis("", 0, high, marked)
        drawn.append(plot(title, alt, x, y, second, first, height=HEIGHT))
    return drawn


# %% [markdown]
# ## The worker
#
# A browser draws a page and runs its scripts in turns, so a long computation freezes the page. A
# *worker* computes beside it. It usually has a file of its own; from a text, a *blob*, it works
# without one, and also for a page that was opened from the disk. The page asks for an iteration,
# the worker makes it and answers. Who does not ask, stops.

# %% tags=["export"]
WORK = """() => {
    let iterate;
    onmessage = ({data: {settings, seed, now}}) => {
      iterate ??= agent(settings, seed);
      postMessage(iterate(now));
    };
  }"""

# The frame around both agents: buttons, sliders, plots, the worker.
SCRIPT = f"""((figure, agent, staged, data) => {{
  const work = {WORK};
  const stage = staged(figure, data);
"""

# Begin anew, with nothing learned. The run before stays in the plots, to compare. An
# iteration that is under way ends with its worker.
SCRIPT += """  const {settings, total, names, sliders, highs, height} = data;
  const lines = [...figure.querySelectorAll(".lr-panels svg")].slice(1)
    .map((svg) => [...svg.querySelectorAll("path")].slice(-2));
  const [train, reset] = figure.querySelectorAll("button");
  const [seed, ...turned] = figure.querySelectorAll("input");
  const say = (words) => { figure.querySelector("output").textContent = words; };
  let worker, busy, asked, seconds, last_20;
  let before = [], run = [];
  const begin = () => {
    worker?.terminate();
    worker = undefined;
    [busy, seconds] = [false, 0];
    if (run.length) before = run;
    [run, last_20] = [[], []];
    stage.begin();
    say("Nothing is learned yet.");
    draw();
  };
"""

# Draw the run so far. A line has a point for each iteration.
SCRIPT += """  const path = (run, k) => run.map((point, i) => (i ? "L" : "M")
    + (38 + 274 * point[0] / total).toFixed(1) + ","
    + (height - height * point[k + 1] / highs[k]).toFixed(1)).join("");
  const draw = () => {
    lines.forEach((pair, k) => pair.forEach((line, i) =>
      line.setAttribute("d", path(i ? run : before, k))));
    const [steps, mean, watched] = run.at(-1) ?? [0, 0, 0];
    figure.querySelector(".lr-now").textContent = `${steps.toLocaleString("en")} steps,`
      + ` ${seconds.toFixed(0)} s: ${stage.words(mean, watched)}`;
    stage.draw();
  };
"""

# Ask for an iteration, with the sliders as they are, and take in the answer. A fast
# machine waits: one wants to watch, and sixteen iterations a second are fast enough.
# A word on a slider, "no clip", is a number without end.
SCRIPT += """  const done = () => run.length > 0 && run.at(-1)[0] >= total;
  const setting = (i) => sliders[i][Number(turned[i].value)];
  const ask = () => {
    if (busy || !running || done()) return;
    if (!worker) {
      const text = `const agent = ${agent}; (${work})()`;
      const address = URL.createObjectURL(new Blob([text], {type: "text/javascript"}));
      worker = new Worker(address);
      worker.onmessage = ({data: found}) => {
        take(found);
        setTimeout(ask, asked + 60 - performance.now());
      };
      URL.revokeObjectURL(address);
    }
    const now = Object.fromEntries(names.map((name, i) =>
      [name, Number.isFinite(setting(i)) ? setting(i) : Infinity]));
    busy = true;
    asked = performance.now();
    worker.postMessage({settings, seed: Number(seed.value), now});
  };
  const take = (found) => {
    busy = false;
    const {steps, returns} = found, watched = stage.take(found);
    last_20 = [...last_20, ...returns].slice(-20);
    const mean = last_20.reduce((a, b) => a + b, 0) / (last_20.length || 1);
    run.push([steps, mean, watched]);
    draw();
    const news = stage.news(returns, last_20, mean, watched);
    const when = `after ${steps.toLocaleString("en")} steps, ${seconds.toFixed(0)} s`;
    if (news) say(`${news}: ${when}.`);
    if (done()) say(`The end, ${when}: ${stage.words(mean, watched)}.`);
  };
"""

# The agent as it is now plays beside its training, at a pace of its own.
SCRIPT += """  let wanted = false, visible = false, running = false;
  let last = 0, behind = 0, next = 0;
  const frame = (now) => {
    running = wanted && visible && figure.isConnected;
    if (!running) return;
    if (!done()) seconds += (now - last) / 1000;
    behind = Math.min(behind + now - last, 5 * stage.pace);
    last = now;
    for (; behind >= stage.pace; behind -= stage.pace) stage.play();
    draw();
    next = requestAnimationFrame(frame);
  };
  const go = () => {
    train.textContent = wanted ? "Stop" : "Train";
    if (running || !wanted || !visible) return;
    running = true;
    last = performance.now();
    next = requestAnimationFrame(frame);
    ask();
  };
"""

# Buttons, sliders and the seed. Nothing moves before somebody has pressed Train.
SCRIPT += """  train.addEventListener("click", () => { wanted = !wanted; go(); });
  reset.addEventListener("click", () => {
    wanted = running = false;
    cancelAnimationFrame(next);
    begin();
    go();
  });
  seed.addEventListener("change", () => { begin(); ask(); });
  const show = (slider, i) => {
    const words = String(setting(i));
    slider.setAttribute("aria-valuetext", words);
    slider.nextElementSibling.textContent = words;
  };
  turned.forEach((slider, i) => {
    slider.addEventListener("input", () => show(slider, i));
    show(slider, i);
  });
  figure.querySelector(".lr-controls").hidden = false;
  begin();
  new IntersectionObserver(([{isIntersecting}]) => {
    visible = isIntersecting;
    go();
  }, {threshold: 0.2}).observe(figure);
})"""

# %% [markdown]
# ## The figures

# %% tags=["export"]
TRAIN_STYLE = """
.lr-train .lr-scene { grid-column: 1 / -1 }
.lr-train .lr-scene svg { max-width: 26rem; margin: auto }
.lr-train.lr-picture path { transition: none }
.lr-train .lr-pole { stroke-width: 6 }
.lr-train.lr-picture :is(.lr-value, .lr-wall) { stroke: none; fill: var(--tone) }
.lr-train .lr-wall { fill-opacity: 0.5 }
.lr-train.lr-picture .lr-faint { stroke-width: 1 }
.lr-train .lr-prize { font-weight: 700; font-size: 1.4em }
.lr-train.lr-picture button { width: auto; padding: 0.3rem 0.9rem; min-height: 2rem }
.lr-train .lr-controls { gap: 0.5rem 1.5rem; align-items: center; margin: 0 0 0.75rem }
.lr-train .lr-controls label { min-height: 1.75rem; flex-basis: 12rem }
.lr-train .lr-controls .lr-seed { flex: 0 0 auto }
.lr-train .lr-controls [type=number] { width: 5rem; min-height: 1.75rem; flex: none;
  font: inherit; color: inherit; background: none;
  border: 1.6px solid color-mix(in srgb, currentColor 55%, transparent);
  border-radius: 0.4rem; padding: 0 0.4rem }
.lr-train .lr-controls b { min-width: 3.5em }
.lr-train .lr-now { margin: 0 0 0.5rem; font-variant-numeric: tabular-nums }
.lr-train output { margin-top: 0 }
"""


def training(
    label: str,
    words: str,
    pictures: Sequence[Picture],
    sliders: Sliders,
    script: tuple[str, str],
    data: Mapping[str, Any],
) -> Widget:
    """Put a figure together: the scene, two plots, controls, and what moves them.

    Args:
        label: What the widget is for, in a few words.
        words: What the pictures show where there is no JavaScript.
        pictures: The scene and the plots.
        sliders: Values of each slider, and where it stands at first.
        script: The agent and its stage.
        data: What the script has to know besides.
    """
    top, *panels = (picture.svg() for picture in pictures)
    data = {
        **data,
        "height": HEIGHT,
        "sliders": [values for values, _ in sliders.values()],
    }
    arguments = ", ".join((*script, packed(data)))
    call = f"{SCRIPT}(document.currentScript.parentElement, {arguments});"
    return Widget(
        f"<style>{TRAIN_STYLE}</style>"
        '<figure class="lr-picture lr-train" role="group" '
        f'aria-label="{escape(label)}">'
        f'<div class="lr-controls" hidden>{controls(sliders)}</div>'
        '<p class="lr-now"></p>'
        f'<div class="lr-panels"><div class="lr-scene">{top}</div>'
        f"{''.join(panels)}</div>"
        f"<output>{words}</output>"
        f"<script>{call}</script></figure>",
        f"{label}: {words}",
    )


def train_cartpole(label: str = "PPO learns to balance a pole in this page") -> Widget:
    """Let the reader train PPO on CartPole in the page.

    Args:
        label: What the widget is for, in a few words.
    """
    rows, ends = [], []
    for runs in stored_runs("train_here").values():
        curves = runs.curves, runs.watched["outside"]
        rows.append([runs.steps.tolist(), *(x.mean(0).tolist() for x in curves)])
        ends.append(runs.final.mean())
    words = (
        f"Means of ten stored runs of {TOTAL:,} steps with ten epochs and the clip, "
        "and of ten without the clip, in the other colour. At the end the agents get "
        f"{ends[0]:.0f} points, and {ends[1]:.0f} without the clip."
    )
    x = Axis("thousand steps", 0, TOTAL, {0: "0", 20_000: "20", 40_000: "40"})
    pictures = [scene([0.0, 0.0, 0.0, 0.0]), *plots(PANELS, x, *rows)]
    data = {
        "settings": SETTINGS,
        "total": TOTAL,
        "metre": METRE,
        "names": ["epochs", "clip", "rate"],
        "highs": [high for _, _, high, _ in PANELS],
    }
    return training(label, words, pictures, SLIDERS, (AGENT, STAGE), data)


@cache
def maze_runs(exploration: float) -> list[list[float]]:
    """Return steps, and the means of ten runs: return and what the walker gets."""
    runs = [learn_maze(0.5, exploration, 0.9, seed).run for seed in range(1, 11)]
    points = [list(zip(*found, strict=True)) for found in zip(*runs, strict=True)]
    return [[sum(x) / len(x) for x in row] for row in zip(*points, strict=True)]


def train_maze(label: str = "Q-learning fills a table in this page") -> Widget:
    """Let the reader fill a table of values by Q-learning in the page.

    Args:
        label: What the widget is for, in a few words.
    """
    rows = [maze_runs(1), maze_runs(0.1)]
    table = learn_maze(0.5, 1, 0.9, 1).table
    words = (
        f"The table after {MAZE_TOTAL:,} steps of nothing but random actions, and "
        "means of ten such runs. In the other colour: one action in ten is random. The "
        f"best actions lead to a prize of {rows[0][2][-1]:.0f}, and of "
        f"{rows[1][2][-1]:.0f}."
    )
    x = Axis("thousand steps", 0, MAZE_TOTAL, {0: "0", 3_000: "3", 6_000: "6"})
    pictures = [maze_scene(table), *plots(MAZE_PANELS, x, *rows)]
    places = [
        (12 + CELL * column + CELL // 2, CELL * row + CELL // 2)
        for row, column in MAZE.cells
    ]
    data = {
        "settings": MAZE_SETTINGS,
        "total": MAZE_TOTAL,
        "cells": places,
        "names": ["step_size", "exploration", "discount"],
        "highs": [high for _, _, high, _ in MAZE_PANELS],
    }
    return training(
        label, words, pictures, MAZE_SLIDERS, (MAZE_AGENT, MAZE_STAGE), data
    )


# %% [markdown]
# ## References
#
# The algorithms are those of {cite:t}`schulman2017`, as {doc}`/chapters/ppo` has it, and of
# {cite:t}`watkins1989`. The physics is that of
# [Gymnasium's CartPole](https://github.com/Farama-Foundation/Gymnasium/blob/v1.0.0/gymnasium/envs/classic_control/cartpole.py).
