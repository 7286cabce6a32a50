"""The simulated pendulum is Gymnasium's."""

import gymnasium as gym
import numpy as np

from benchmarks import landscapes


def test_the_simulated_pendulum_is_gymnasiums():
    env = gym.make("Pendulum-v1").unwrapped
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(50):
        state = rng.uniform([-np.pi, -8], [np.pi, 8])
        torque = rng.uniform(-2, 2, 1).astype(np.float32)
        env.state = state.copy()
        obs, reward, *_ = env.step(torque)
        after, paid = landscapes.swing(state[None], torque.astype(float))
        assert np.allclose(landscapes.seen(after)[0], obs, atol=1e-5)
        assert np.isclose(paid[0], reward, atol=1e-6)
