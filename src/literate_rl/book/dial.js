// A dial: the page calculates nothing, it puts strings back that were kept.
import {name_value, say} from "./clock.js";

export const start = (figure, {sizes, texts, live, frames, readouts}) => {
  const controls = [...figure.querySelectorAll("input, button")];
  const parts = figure.querySelectorAll("svg path, svg text");
  // Where a control stands: a slider at a number, a button at 0 or 1.
  const position = (control) => control.type === "range"
    ? Number(control.value) : Number(control.getAttribute("aria-pressed") === "true");
  // Count the setting's number, then put its strings into their places.
  const draw = () => {
    const at = controls.map(position);
    const index = at.reduce((sum, digit, i) => sum * sizes[i] + digit, 0);
    live.forEach((place, i) => parts[place].setAttribute(
      parts[place].tagName === "path" ? "d" : "transform", frames[index][i]));
    say(figure, readouts[index]);
    controls.forEach((control, i) => {
      if (texts[i]) name_value(control, texts[i][at[i]]);
      else control.textContent = at[i];
    });
  };
  // A button changes its state when it is pressed. Then the controls may be seen.
  figure.addEventListener("input", draw);
  figure.addEventListener("click", ({target}) => {
    if (!target.matches("button")) return;
    target.setAttribute("aria-pressed", String(!position(target)));
    draw();
  });
  figure.querySelector(".lr-controls").hidden = false;
  draw();
};
