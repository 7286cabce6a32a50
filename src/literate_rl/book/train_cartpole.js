// PPO on CartPole: the agent as it is now, beside its training.
import {act, fallen, move, reset} from "./cartpole.js";
import {train} from "./train.js";

export const start = (figure, data) => {
  const marks = figure.querySelectorAll(".lr-moves");
  let state, actor, stood, solved;
  train(figure, data, {
    pace: 20,
    begin: () => {
      [state, actor, stood, solved] = [[0, 0, 0, 0], null, false, false];
    },
    take: (found) => { actor = found.actor; return found.outside; },
    play: () => {
      if (actor) state = act(actor, state);
      if (fallen(state)) state = reset(Math.random);
    },
    draw: () => move(marks, state, data.metre),
    words: (mean, share) =>
      `return ${mean.toFixed(0)}, ${(100 * share).toFixed(0)} % out of range`,
    news: (returns, last_20, mean) => {
      stood ||= returns.includes(500);
      solved ||= last_20.length === 20 && mean >= 475;
      return solved ? "It stands: a mean return above 475 over the last 20 episodes"
        : stood ? "The first pole that stood for 500 steps" : "No pole stands yet";
    },
  });
};
