// Q-learning with a table, in a maze.
import {generator} from "./random.js";

// The first of the best actions.
export const best = (values) => values.indexOf(Math.max(...values));

// The value of the action that was taken moves by a share, the step size, towards the
// reward plus the discounted value of the best next action.
export const agent = ({next, prize, start: home, limit, num_steps}, seed) => {
  const random = generator(seed), table = next.map(() => [0, 0, 0, 0]);
  let steps = 0, state = home, length = 0;

  // A random action now and then, and chance among equally good ones.
  const choose = (values, explore) => {
    const top = Math.max(...values);
    const good = [0, 1, 2, 3].filter((action) => explore || values[action] === top);
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
    [state, length] = [home, 0];
  };

  // What the walker beside the training gets, who takes the first of the best actions.
  const walk = () => {
    let place = home;
    for (let i = 0; i < limit && !prize[place]; i++)
      place = next[place][best(table[place])];
    return prize[place];
  };
  return (now) => {
    const returns = [];
    for (let i = 0; i < num_steps; i++) take_step(now, returns);
    return {steps, returns, table, walked: walk()};
  };
};
