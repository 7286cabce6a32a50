// An agent plays episode after episode, and the reader may push it.
import {act, fallen, forward, move, off_track, physics, reset} from "./cartpole.js";
import {clock, say} from "./clock.js";

export const start = (figure, {actor, critic, push, metre, low, high}) => {
  const [to_left, to_right, toggle, again] = figure.querySelectorAll("button");
  const marks = figure.querySelectorAll(".lr-moves");
  const [line, dots] = [...figure.querySelectorAll("svg:last-child path")].slice(-2);
  const clamp = (x, least, most) => Math.min(most, Math.max(least, x));
  let state, steps, falling, kick = 0, history = [];
  const begin = () => {
    state = reset(Math.random);
    steps = falling = 0;
  };

  // After the end the pole falls for as long as `falling` counts, and nobody acts.
  const fall = () => {
    const [x, velocity, angle, spin] = physics(state, 0), lying = Math.PI / 2;
    state = [clamp(x, -2.4, 2.4), velocity, clamp(angle, -lying, lying), spin];
    history.push([null, 0]);
    falling -= 1;
    if (falling === 0) begin();
  };

  // One step of the game. A push waits for the next step.
  const step = () => {
    if (falling) return fall();
    state[3] += kick * push;
    const [value] = forward(critic, state).at(-1), points = value.toFixed(1);
    history.push([value, kick]);
    kick = 0;
    state = act(actor, state);
    steps += 1;
    if (steps % 10 === 0)
      figure.querySelector(".lr-now").textContent = `Step ${steps}, value ${points}`;
    if (!fallen(state)) return;
    falling = 50;
    const why = off_track(state) ? "the cart left the track" : "the pole leaned too far";
    say(figure,
      `The last episode ended after ${steps} steps, at the value ${points}: ${why}.`);
  };

  // Put all marks where they are now. A line is broken where nobody acted.
  const draw = () => {
    move(marks, state, metre);
    history = history.slice(-301);
    const places = history.map(([value], i) =>
      [432 - 394 * (history.length - 1 - i) / 300,
        80 * (high - clamp(value, low, high)) / (high - low)]
        .map((number) => number.toFixed(1)).join());
    const acted = (i) => i >= 0 && history[i][0] !== null;
    line.setAttribute("d", places.map((at, i) =>
      acted(i) ? (acted(i - 1) ? "L" : "M") + at : "").join(""));
    dots.setAttribute("d", places.map((at, i) =>
      history[i][1] ? `M${at}h0` : "").join(""));
  };

  const wake = () => { if (!history.length) say(figure, "No episode has ended yet."); };
  const {go} = clock(figure, toggle, ["Play", "Pause"], 20, {step, draw, wake});

  // Buttons and keys. A push wakes an agent that stands still.
  const shove = (way) => { kick += way; go(true); };
  to_left.addEventListener("click", () => shove(-1));
  to_right.addEventListener("click", () => shove(1));
  again.addEventListener("click", () => {
    begin();
    history = [];
    go(true);
  });
  figure.addEventListener("keydown", (event) => {
    const {key, target} = event;
    if (key === "ArrowLeft") shove(-1);
    else if (key === "ArrowRight") shove(1);
    else if (key === " " && target === figure) toggle.click();
    else return;
    event.preventDefault();
  });
  // The figure takes the focus, so that the arrow keys push. JupyterLab keeps keys for
  // itself unless an element asks it not to.
  figure.tabIndex = 0;
  figure.dataset.lmSuppressShortcuts = "true";
  begin();
  go(!matchMedia("(prefers-reduced-motion: reduce)").matches);
};
