// Figures that move: what they have in common.

// Call `step` at a pace, in milliseconds, and `draw` as often as the screen is drawn,
// with the time since the last call, while the button `toggle` says so and the figure is
// in view. One that has left its page stops for good. `wake` is called when it may go on.
export const clock = (figure, toggle, words, pace, {step, draw, wake}) => {
  let wanted = false, seen = false, running = false, last = 0, behind = 0;
  const active = () => wanted && seen && figure.isConnected;
  const frame = (now) => {
    running = active();
    if (!running) return;
    behind = Math.min(behind + now - last, 5 * pace);
    for (; behind >= pace; behind -= pace) step();
    draw(now - last);
    last = now;
    requestAnimationFrame(frame);
  };
  const go = (on) => {
    wanted = on;
    toggle.textContent = words[Number(on)];
    if (!active()) return;
    wake();
    if (running) return;
    running = true;
    last = performance.now();
    requestAnimationFrame(frame);
  };
  figure.querySelector(".lr-controls").hidden = false;
  toggle.addEventListener("click", () => go(!wanted));
  new IntersectionObserver(([{isIntersecting}]) => {
    seen = isIntersecting;
    go(wanted);
  }, {threshold: 0.2}).observe(figure);
  return {go, active};
};

// Where a screen reader hears the news.
export const say = (figure, words) => {
  figure.querySelector("output").textContent = words;
};

// A screen reader says the value of a slider, not its position.
export const name_value = (slider, words) => {
  slider.setAttribute("aria-valuetext", words);
  slider.nextElementSibling.textContent = words;
};
