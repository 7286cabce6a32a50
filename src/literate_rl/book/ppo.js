// PPO once more, with backpropagation by hand, for CartPole.
import {fallen, forward, physics, reset} from "./cartpole.js";
import {generator} from "./random.js";

// What PPO draws: where an episode begins, a number between 0 and 1 for each action, the
// order of the samples, and the weights of a network.
export const chance = (seed) => {
  const random = generator(seed);

  // A shuffle: each place, from the last to the first, swaps with one before.
  const order = (count) => {
    const rows = Array.from({length: count}, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [rows[i], rows[j]] = [rows[j], rows[i]];
    }
    return rows;
  };

  // Weights have the standard deviation of one over the root of the inputs, and those of
  // the last layer are `gain` times as large. A small gain makes a policy that tries both
  // actions.
  const network = (sizes, gain) => sizes.slice(1).map((outputs, i) => {
    const inputs = sizes[i], last = i === sizes.length - 2;
    const bound = (last ? gain : 1) * Math.sqrt(3 / inputs);
    const row = () => Float64Array.from({length: inputs}, () => bound * (2 * random() - 1));
    return [Array.from({length: outputs}, row), new Float64Array(outputs)];
  });
  return {start: () => reset(random), action: random, order, network};
};

// Gradients of a network: `rows` is what the forward pass kept, and `slope` the derivative
// of the loss by what the last layer said. Each layer adds to the gradients of its weights,
// and hands the slope down to the layer below.
const backward = (layers, gradients, rows, slope) => {
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
};

const total = (numbers) => numbers.reduce((sum, x) => sum + x, 0);

const log_softmax = (logits) => {
  const top = Math.max(...logits);
  const sum = total(logits.map((logit) => Math.exp(logit - top)));
  return logits.map((logit) => logit - top - Math.log(sum));
};

const ratio_of = (log_prob, {action, old}) =>
  Math.exp(Math.min(20, Math.max(-20, log_prob[action] - old)));

// `learner` takes settings, the draws and two networks, and returns a function that makes
// one iteration. Epochs, clip range and learning rate come with each call, so they may
// change while it learns.
export const learner = (settings, draw, [actor, critic]) => {
  const {gamma, lambda, limit, num_envs} = settings;

  // Weights and biases of both networks become one list of arrays. Adam has two moments
  // for each number and begins with zeros.
  const nought = (array) => array.map(() => 0);
  const gradients = [actor, critic].map((network) => network.map(([weight, bias]) =>
    [weight.map(nought), nought(bias)]));
  const arrays = (networks) =>
    networks.flat().flatMap(([weight, bias]) => [...weight, bias]);
  const parameters = arrays([actor, critic]), by_parameters = arrays(gradients);
  const first = parameters.map(nought), second = parameters.map(nought);
  let updates = 0, steps = 0;
  const envs = Array.from({length: num_envs}, () => ({state: draw.start(), length: 0}));

  // What the networks say. Observations are the state in single precision, as Gymnasium's.
  const seen = (state) => state.map(Math.fround);
  const value = (obs) => forward(critic, obs).at(-1)[0];
  const log_probs = (obs) => log_softmax(forward(actor, obs).at(-1));

  // 1. Collect. A sample is one step in one environment. An episode ends with a fall, or
  // at the time limit: the first has no future, the second has one.
  const take_step = (env, returns) => {
    const obs = seen(env.state), log_prob = log_probs(obs);
    const action = draw.action() < Math.exp(log_prob[1]) ? 1 : 0;
    const state = physics(env.state, action ? 10 : -10), length = env.length + 1;
    const terminated = fallen(state), done = terminated || length === limit;
    const sample = {obs, action, done, old: log_prob[action], value: value(obs),
      next_value: terminated ? 0 : value(seen(state))};
    if (done) returns.push(length);
    Object.assign(env, done ? {state: draw.start(), length: 0} : {state, length});
    return sample;
  };

  // 2. Look back. The samples lie in the order of time, all environments of one step side
  // by side, so the next step of an environment is `num_envs` places further.
  const look_back = (samples) => {
    for (let i = samples.length - 1; i >= 0; i--) {
      const sample = samples[i], later = samples[i + num_envs];
      const td_error = 1 + gamma * sample.next_value - sample.value;
      const passed_on = later && !sample.done ? later.adv : 0;
      sample.adv = td_error + gamma * lambda * passed_on;
      sample.target = sample.adv + sample.value;
    }
  };

  // 3. Learn. The slope of the clipped surrogate over the log-probability is the ratio
  // times the advantage where it is alive, and zero where it is not. The slope of a
  // log-probability over its own logit is one minus the probability, and over the other
  // logit it is minus the other probability.
  const slopes = (sample, logits, adv, clip) => {
    const log_prob = log_softmax(logits), prob = log_prob.map(Math.exp);
    const entropy = -total(prob.map((p, i) => p * log_prob[i]));
    const ratio = ratio_of(log_prob, sample);
    const alive = adv > 0 ? ratio <= 1 + clip : ratio >= 1 - clip;
    return prob.map((p, i) => settings.entropy_weight * p * (log_prob[i] + entropy)
      - (alive ? ratio * adv : 0) * ((i === sample.action) - p));
  };
  const learn = (part, clip, rate) => {
    const mean = total(part.map(({adv}) => adv)) / part.length;
    const spread = total(part.map(({adv}) => (adv - mean) ** 2));
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

  // One step of Adam, with a gradient whose norm is at most the bound.
  const step_downhill = (rate) => {
    const norm = Math.sqrt(total(by_parameters.map((array) =>
      total(array.map((slope) => slope * slope)))));
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

  // The loop around them. At the end each ratio says how far the policy has moved. Where
  // nothing is clipped, 0.2 is the measure.
  return ({epochs, clip, rate}) => {
    const returns = [], samples = [];
    for (let t = 0; t < settings.num_steps; t++)
      for (const env of envs) samples.push(take_step(env, returns));
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
};

// The parts together: the draws of a seed, and both networks.
export const agent = (settings, seed) => {
  const draw = chance(seed), {hidden} = settings;
  const networks = [[2, 0.01], [1, 1]].map(([outputs, gain]) =>
    draw.network([4, hidden, hidden, outputs], gain));
  return learner(settings, draw, networks);
};
