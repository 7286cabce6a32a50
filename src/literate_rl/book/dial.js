// A dial: the page calculates nothing, it puts strings back that were kept.
import {name_value, say} from "./clock.js";

export const start = (figure, {texts, live, frames, readouts}) => {
  const controls = [...figure.querySelectorAll("input")];
  const parts = figure.querySelectorAll("svg path, svg text");
  // Count the setting's number, then put its strings into their places.
  const draw = () => {
    const at = controls.map(({type, checked, value}) =>
      Number(type === "range" ? value : checked));
    const index = at.reduce((sum, digit, i) => sum * texts[i].length + digit, 0);
    live.forEach((place, i) => parts[place].setAttribute(
      parts[place].tagName === "path" ? "d" : "transform", frames[index][i]));
    say(figure, readouts[index]);
    controls.forEach((control, i) => {
      if (control.type === "range") name_value(control, texts[i][at[i]]);
    });
  };
  figure.addEventListener("input", draw);
  figure.querySelector(".lr-controls").hidden = false;
  draw();
};
