"""PPO as a page trains it: the page's own script, ten seeds with the clip and without.

``python -m benchmarks.train_here`` runs the script in V8, the engine of Chromium, and
stores curves, what the greedy agent gets in 20 games, and when a pole first stood.
"""

from __future__ import annotations

import json
import time

import numpy as np
from py_mini_racer import MiniRacer

from benchmarks.harness import provenance
from benchmarks.learning import LEARNING
from benchmarks.store import write_table
from literate_rl.book.playground import FALLEN, FORWARD, PHYSICS
from literate_rl.book.train_here import AGENT, CHANCE, SETTINGS, SLIDERS, TOTAL

SEEDS = range(1, 11)
BINS = 25
VARIANTS = {"clip 0.2": "0.2", "no clip": "Infinity"}
COLUMNS = (
    "variant",
    "seed",
    "return",
    "area",
    "cpu_seconds",
    "last",
    "stood",
    "solved",
)

# A run: the mean return of the last 20 episodes and the share out of range after each
# iteration, and the returns of 20 greedy games at the end.
RUN = f"""(settings, total, seed, now) => {{
  const iterate = ({AGENT})(settings, seed);
  const physics = {PHYSICS}, fallen = {FALLEN}, forward = {FORWARD};
  const rows = [];
  let found, last_20 = [], stood = NaN, solved = NaN;
  do {{
    found = iterate(now);
    last_20 = [...last_20, ...found.returns].slice(-20);
    const mean = last_20.reduce((a, b) => a + b, 0) / last_20.length;
    rows.push([found.steps, mean, found.outside]);
    if (found.returns.includes(500)) stood ||= found.steps;
    if (last_20.length === 20 && mean >= 475) solved ||= found.steps;
  }} while (found.steps < total);
  const draw = ({CHANCE})(1000000);
  const greedy = [...Array(20)].map(() => {{
    let state = draw.start(), steps = 0;
    for (; steps < 500 && !fallen(state); steps++) {{
      const [left, right] = forward(found.actor, state).at(-1);
      state = physics(state, right > left ? 10 : -10);
    }}
    return steps;
  }});
  return JSON.stringify({{rows, greedy, stood, solved}});
}}"""


def number(value: float | None) -> float:
    """Return a number; one that JSON could not write is NaN."""
    return float("nan") if value is None else float(value)


def main() -> None:
    """Run all seeds with and without the clip, and store the results."""
    (_, epochs), _, (_, rate) = SLIDERS.values()
    origin = provenance("python -m benchmarks.train_here", "mini-racer")
    origin.pop("seed")
    origin["env"] = "CartPole-v1"
    words = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
    origin["settings"] = f"total_steps={TOTAL} num_epochs={epochs} rate={rate} {words}"
    origin["seeds"] = f"{SEEDS[0]} to {SEEDS[-1]}"
    ends, curves = [], []
    for seed in SEEDS:
        for variant, clip in VARIANTS.items():
            engine, start = MiniRacer(), time.process_time()
            now = f"{{epochs: {epochs}, clip: {clip}, rate: {rate}}}"
            call = f"({RUN})({json.dumps(SETTINGS)}, {TOTAL}, {seed}, {now})"
            found = json.loads(str(engine.eval(call)))
            seconds = time.process_time() - start
            engine.close()
            table = np.array(found["rows"])
            measured = np.mean(found["greedy"]), table[:, 1].mean(), seconds
            judged = table[-1, 1], found["stood"], found["solved"]
            ends.append((variant, seed, *map(number, (*measured, *judged))))
            print(*ends[-1])
            # The mean of each of the bins of a run.
            for part in np.array_split(table, BINS):
                steps, mean, share = part[-1, 0], *part[:, 1:].mean(0)
                curves.append((variant, seed, int(steps), mean, share))
    write_table(LEARNING / "train_here.csv", COLUMNS, ends, origin)
    names = ("variant", "seed", "step", "return", "outside")
    write_table(LEARNING / "train_here_curves.csv", names, curves, origin)


if __name__ == "__main__":
    main()
