# Generated from chapters/workshop/train_here.py (edit there); digest 377d217d3cd0de56
"""Train here: PPO on CartPole in the page, with settings that the reader turns."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from literate_rl.workshop.pictures import Axis, Mark, Picture, Widget, plot
from literate_rl.workshop.playground import (
    FALLEN,
    FORWARD,
    METRE,
    MOVE,
    PHYSICS,
    packed,
    scene,
)
from literate_rl.workshop.runs import stored_runs

__all__ = ["SETTINGS", "train_cartpole"]


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


AGENT = f"""(settings, seed) => {{
    const draw = ({CHANCE})(seed), hidden = settings.hidden;
    const networks = [[2, 0.01], [1, 1]].map(([outputs, gain]) =>
      draw.network([4, hidden, hidden, outputs], gain));
    return ({LEARNER})(settings, draw, networks);
  }}"""


NO_CLIP = "no clip"
SLIDERS: dict[str, tuple[Sequence[Any], Any]] = {
    "epochs": ((1, 2, 3, 5, 10, 20), 10),
    "clip": ((0.05, 0.1, 0.2, 0.4, NO_CLIP), 0.2),
    "learning rate": ((0.0005, 0.001, 0.002, 0.005, 0.01), 0.005),
}


def controls() -> str:
    """Return buttons, sliders and the field for the seed."""
    rows = "".join(
        f'<label>{name} <input type="range" min="0" max="{len(values) - 1}" '
        f'value="{values.index(value)}"> <b aria-hidden="true">{value}</b></label>'
        for name, (values, value) in SLIDERS.items()
    )
    return (
        '<button type="button">Train</button><button type="button">Reset</button>'
        '<label class="lr-seed">seed <input type="number" min="1" max="9999" value="1">'
        f"</label>{rows}"
    )


HEIGHT = 100


def plots(with_clip: Sequence[Any], without: Sequence[Any]) -> list[Picture]:
    """Draw steps, returns and shares of stored runs, or none of them."""
    x = Axis("thousand steps", 0, TOTAL, {0: "0", 20_000: "20", 40_000: "40"})
    words = "The mean return of the last 20 episodes over the steps, up to 500."
    shares = "The share of the ratios that are out of the clip range after learning."
    drawn = []
    for title, alt, high, marked, k in (
        ("Return", words, 500, (0, 250, 500), 1),
        ("Share of ratios out of range", shares, 1, (0, 0.5, 1), 2),
    ):
        second = Mark("line thick", without[0], without[k], "second")
        first = Mark("line thick", with_clip[0], with_clip[k], "accent")
        y = Axis("", 0, high, marked)
        drawn.append(plot(title, alt, x, y, second, first, height=HEIGHT))
    return drawn


WORK = """() => {
    let iterate;
    onmessage = ({data: {settings, seed, now}}) => {
      iterate ??= agent(settings, seed);
      postMessage(iterate(now));
    };
  }"""

SCRIPT = f"""((figure, {{settings, total, metre, height, sliders}}) => {{
  const physics = {PHYSICS};
  const fallen = {FALLEN};
  const forward = {FORWARD};
  const move = {MOVE};
  const agent = {AGENT};
  const work = {WORK};
"""

# Begin anew, with nothing learned. The run before stays in the plots, to compare. An
# iteration that is under way ends with its worker.
SCRIPT += """  const marks = figure.querySelectorAll(".lr-moves");
  const lines = [...figure.querySelectorAll(".lr-panels svg")].slice(1)
    .map((svg) => [...svg.querySelectorAll("path")].slice(-2));
  const [train, reset] = figure.querySelectorAll("button");
  const [seed, ...turned] = figure.querySelectorAll("input");
  const say = (words) => { figure.querySelector("output").textContent = words; };
  let worker, busy, asked, seconds, state, actor, last_20, stood, solved;
  let before = [], run = [];
  const begin = () => {
    worker?.terminate();
    worker = undefined;
    [busy, seconds, actor, stood, solved] = [false, 0, null, false, false];
    if (run.length) before = run;
    [run, last_20, state] = [[], [], [0, 0, 0, 0]];
    say("Nothing is learned yet.");
    draw();
  };
"""

# Draw the run so far. A line has a point for each iteration.
SCRIPT += """  const path = (run, k, high) => run.map((point, i) => (i ? "L" : "M")
    + (38 + 274 * point[0] / total).toFixed(1) + ","
    + (height - height * point[k] / high).toFixed(1)).join("");
  const draw = () => {
    lines.forEach((pair, k) => pair.forEach((line, i) =>
      line.setAttribute("d", path(i ? run : before, k + 1, k ? 1 : 500))));
    const [steps, mean, share] = run.at(-1) ?? [0, 0, 0];
    figure.querySelector(".lr-now").textContent = `${steps.toLocaleString("en")} steps,`
      + ` ${seconds.toFixed(0)} s: return ${mean.toFixed(0)},`
      + ` ${(100 * share).toFixed(0)} % out of range`;
    move(marks, state, metre);
  };
"""

# Ask for an iteration, with the sliders as they are, and take in the answer. A fast
# machine waits: one wants to watch, and sixteen iterations a second are fast enough.
SCRIPT += """  const done = () => run.length > 0 && run.at(-1)[0] >= total;
  const setting = (i) => sliders[i][Number(turned[i].value)];
  const ask = () => {
    if (busy || !running || done()) return;
    if (!worker) {
      const text = `const agent = ${agent}; (${work})()`;
      const address = URL.createObjectURL(new Blob([text], {type: "text/javascript"}));
      worker = new Worker(address);
      worker.onmessage = ({data}) => {
        take(data);
        setTimeout(ask, asked + 60 - performance.now());
      };
      URL.revokeObjectURL(address);
    }
    const clip = Number.isFinite(setting(1)) ? setting(1) : Infinity;
    const now = {epochs: setting(0), clip, rate: setting(2)};
    busy = true;
    asked = performance.now();
    worker.postMessage({settings, seed: Number(seed.value), now});
  };
  const take = ({steps, returns, outside, actor: learned}) => {
    busy = false;
    actor = learned;
    last_20 = [...last_20, ...returns].slice(-20);
    const mean = last_20.reduce((a, b) => a + b, 0) / (last_20.length || 1);
    run.push([steps, mean, outside]);
    draw();
    const when = `after ${steps.toLocaleString("en")} steps, ${seconds.toFixed(0)} s`;
    if (!stood && returns.includes(500)) {
      stood = true;
      say(`The first pole that stood for 500 steps: ${when}.`);
    }
    if (!solved && last_20.length === 20 && mean >= 475) {
      solved = true;
      say(`It stands: the last 20 episodes had a mean return of ${mean.toFixed(0)}, ` +
        `${when}.`);
    }
    if (steps >= total) say(`The end, ${when}: ` +
      `the last 20 episodes had a mean return of ${mean.toFixed(0)}.`);
  };
"""

# The agent as it is now plays beside its training, fifty steps a second. It takes the
# more probable action.
SCRIPT += """  const play = () => {
    const [left, right] = forward(actor, state).at(-1);
    state = physics(state, right > left ? 10 : -10);
    if (fallen(state)) state = [0, 0, 0, 0].map(() => Math.random() / 10 - 0.05);
  };
  let wanted = false, visible = false, running = false, last = 0, behind = 0;
  const frame = (now) => {
    running = wanted && visible && figure.isConnected;
    if (!running) return;
    if (!done()) seconds += (now - last) / 1000;
    behind = Math.min(behind + now - last, 100);
    last = now;
    for (; behind >= 20; behind -= 20) if (actor) play();
    draw();
    requestAnimationFrame(frame);
  };
  const go = () => {
    train.textContent = wanted ? "Stop" : "Train";
    if (running || !wanted || !visible) return;
    running = true;
    last = performance.now();
    requestAnimationFrame(frame);
    ask();
  };
"""

# Buttons, sliders and the seed. Nothing moves before somebody has pressed Train.
SCRIPT += """  train.addEventListener("click", () => { wanted = !wanted; go(); });
  reset.addEventListener("click", () => { begin(); ask(); });
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


TRAIN_STYLE = """
.lr-train .lr-scene { grid-column: 1 / -1 }
.lr-train .lr-scene svg { max-width: 26rem; margin: auto }
.lr-train.lr-picture path { transition: none }
.lr-train .lr-pole { stroke-width: 6 }
.lr-train.lr-picture button { width: auto; padding: 0.3rem 0.9rem; min-height: 2rem }
.lr-train .lr-controls { gap: 0.5rem 1.5rem; align-items: center }
.lr-train .lr-controls label { min-height: 1.75rem; flex-basis: 12rem }
.lr-train .lr-controls .lr-seed { flex: 0 0 auto }
.lr-train .lr-controls [type=number] { width: 5rem; min-height: 1.75rem; flex: none;
  font: inherit; color: inherit; background: none;
  border: 1.6px solid color-mix(in srgb, currentColor 55%, transparent);
  border-radius: 0.4rem; padding: 0 0.4rem }
.lr-train .lr-controls b { min-width: 3.5em }
.lr-train .lr-now { margin: 0.5rem 0 0; font-variant-numeric: tabular-nums }
.lr-train output { margin-top: 0 }
"""


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
    top = scene([0.0, 0.0, 0.0, 0.0]).svg()
    panels = "".join(picture.svg() for picture in plots(*rows))
    data = {
        "settings": SETTINGS,
        "total": TOTAL,
        "metre": METRE,
        "height": HEIGHT,
        "sliders": [values for values, _ in SLIDERS.values()],
    }
    call = f"{SCRIPT}(document.currentScript.parentElement, {packed(data)});"
    return Widget(
        f"<style>{TRAIN_STYLE}</style>"
        '<figure class="lr-picture lr-train" role="group" '
        f'aria-label="{escape(label)}">'
        f'<div class="lr-panels"><div class="lr-scene">{top}</div>{panels}</div>'
        f'<div class="lr-controls" hidden>{controls()}</div>'
        f'<p class="lr-now"></p><output>{words}</output>'
        f"<script>{call}</script></figure>",
        f"{label}: {words}",
    )
