// In the worker: who asks for an iteration gets one. Who does not ask, stops.
export const work = (agent) => {
  let iterate;
  self.onmessage = ({data: {settings, seed, now}}) => {
    iterate ??= agent(settings, seed);
    self.postMessage(iterate(now));
  };
};
