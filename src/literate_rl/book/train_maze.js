// Q-learning in the maze: the table, and the walker who takes the best actions.
import {best} from "./q_learning.js";
import {train} from "./train.js";

export const start = (figure, data) => {
  const {cells, settings: {next, prize, start: home}} = data;
  const marks = figure.querySelectorAll(".lr-value");
  const numbers = figure.querySelectorAll(".lr-number, .lr-prize");
  const ring = figure.querySelector(".lr-moves");
  let state, table;
  train(figure, data, {
    pace: 150,
    begin: () => { [state, table] = [home, next.map(() => [0, 0, 0, 0])]; },
    take: (found) => { table = found.table; return found.walked; },
    play: () => { state = prize[state] ? home : next[state][best(table[state])]; },
    draw: () => {
      ring.setAttribute("transform", `translate(${cells[state].join(" ")})`);
      table.flat().forEach((value, i) => marks[i].setAttribute(
        "fill-opacity", (0.7 * Math.sqrt(value / 10)).toFixed(2)));
      table.forEach((values, i) => {
        if (!prize[i]) numbers[i].textContent = Math.max(...values).toFixed(1);
      });
    },
    words: (mean, now) =>
      `return ${mean.toFixed(1)} while learning, ${now} for the best actions`,
    news: (returns, last_20, mean, now) =>
      `The best actions now lead to ${now ? `the prize of ${now}` : "no prize"}`,
  });
};
