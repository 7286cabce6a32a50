// CartPole in a page: its physics, a network that acts, and the marks of the scene.

// The equations of Gymnasium's CartPole, in its order: a cart of 1 kg, a pole of 0.1 kg
// and 1 m, and a step of 0.02 s, in which the old velocities move cart and pole.
export const physics = ([x, velocity, angle, spin], force) => {
  const sin = Math.sin(angle), cos = Math.cos(angle);
  const pull = (force + 0.05 * spin * spin * sin) / 1.1;
  const turn = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1));
  const speed_up = pull - 0.05 * turn * cos / 1.1;
  return [x + 0.02 * velocity, velocity + 0.02 * speed_up,
    angle + 0.02 * spin, spin + 0.02 * turn];
};

// An episode ends where the cart leaves the track, or the pole leans too far.
export const off_track = ([x]) => Math.abs(x) > 2.4;
export const fallen = (state) =>
  off_track(state) || Math.abs(state[2]) > 12 * 2 * Math.PI / 360;

// Where an episode begins.
export const reset = (random) => [0, 0, 0, 0].map(() => random() / 10 - 0.05);

// A layer is a sum for each of its outputs, and between two layers there is a tanh. The
// row that goes in comes back, and the row after each layer: whoever wants to learn needs
// them all. The last one is what the network says.
export const forward = (layers, input) => layers.reduce((rows, [weight, bias], depth) => {
  const row = rows.at(-1), last = depth === layers.length - 1;
  const sums = weight.map((weights, i) => {
    let sum = bias[i];
    for (let j = 0; j < row.length; j++) sum += weights[j] * row[j];
    return last ? sum : Math.tanh(sum);
  });
  return [...rows, sums];
}, [input]);

// A step with the more probable action.
export const act = (actor, state) => {
  const [left, right] = forward(actor, state).at(-1);
  return physics(state, right > left ? 10 : -10);
};

// Put the three marks of the scene where a state says: the limits, the cart, the pole.
export const move = (marks, [x, , angle], metre) => {
  const shift = `translate(${(x * metre).toFixed(1)} 0)`;
  const lean = (angle * 180 / Math.PI).toFixed(1);
  [shift, shift, `${shift} rotate(${lean} 220 86)`].forEach((place, i) =>
    marks[i].setAttribute("transform", place));
};
