// The frame around both agents: buttons, sliders, plots, the worker.
import {clock, name_value, say} from "./clock.js";

export const train = (figure, data, stage) => {
  const {settings, total, names, sliders, highs, height} = data;
  const lines = [...figure.querySelectorAll(".lr-panels svg")].slice(1)
    .map((svg) => [...svg.querySelectorAll("path")].slice(-2));
  const [toggle, reset] = figure.querySelectorAll("button");
  const [seed, ...turned] = figure.querySelectorAll("input");
  let worker, busy, asked, seconds, last_20, told;
  let before = [], run = [];

  // Begin anew, with nothing learned. The run before stays in the plots, to compare. An
  // iteration that is under way ends with its worker.
  const begin = () => {
    worker?.terminate();
    [worker, busy, seconds] = [undefined, false, 0];
    if (run.length) before = run;
    [run, last_20, told] = [[], [], ""];
    stage.begin();
    say(figure, "Nothing is learned yet.");
    draw();
  };

  // Draw the run so far. A line has a point for each iteration.
  const path = (points, k) => points.map((point, i) => (i ? "L" : "M")
    + (38 + 274 * point[0] / total).toFixed(1) + ","
    + (height - height * point[k + 1] / highs[k]).toFixed(1)).join("");
  const written = (steps) =>
    `${steps.toLocaleString("en")} steps, ${seconds.toFixed(0)} s`;
  const draw = () => {
    lines.forEach(([old, line], k) => {
      old.setAttribute("d", path(before, k));
      line.setAttribute("d", path(run, k));
    });
    const [steps, mean, watched] = run.at(-1) ?? [0, 0, 0];
    figure.querySelector(".lr-now").textContent =
      `${written(steps)}: ${stage.words(mean, watched)}`;
    stage.draw();
  };

  // Ask for an iteration, with the sliders as they are, and take in the answer. A fast
  // machine waits: one wants to watch, and sixteen iterations a second are fast enough. A
  // word on a slider, "no clip", is a number without end.
  const done = () => run.length > 0 && run.at(-1)[0] >= total;
  const setting = (i) => sliders[i][turned[i].value];
  const ask = () => {
    if (busy || !active() || done()) return;
    if (!worker) {
      const text = new Blob([data.worker], {type: "text/javascript"});
      const address = URL.createObjectURL(text);
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
    if (news !== told) say(figure, `${news}: after ${written(steps)}.`);
    told = news;
    if (done())
      say(figure, `The end, after ${written(steps)}: ${stage.words(mean, watched)}.`);
  };

  // The agent as it is now plays beside its training, at a pace of its own. Nothing moves
  // before somebody has pressed Train.
  const {go, active} = clock(figure, toggle, ["Train", "Stop"], stage.pace, {
    step: stage.play,
    draw: (passed) => {
      if (!done()) seconds += passed / 1000;
      draw();
    },
    wake: ask,
  });
  reset.addEventListener("click", () => { begin(); go(false); });
  seed.addEventListener("change", () => { begin(); ask(); });
  turned.forEach((slider, i) => {
    const show = () => name_value(slider, String(setting(i)));
    slider.addEventListener("input", show);
    show();
  });
  begin();
};
