"""An offset of a critic is no ridge, and the pendulum is Gymnasium's."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from benchmarks import landscapes
from literate_rl.learners.ddpg import make_ddpg_policy

STATES = spaces.Box(-8, 8, (3,))
TORQUES = spaces.Box(-2, 2, (1,))


def test_the_simulated_pendulum_is_gymnasiums() -> None:
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


class Told(torch.nn.Module):
    """A critic that adds something to the truth: an offset and a slope."""

    def __init__(self, offset: float, slope: float) -> None:
        super().__init__()
        self.offset, self.slope = offset, slope

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.offset + self.slope * action


def test_an_offset_has_no_ridge_and_a_slope_no_offset(monkeypatch) -> None:
    monkeypatch.setattr(landscapes, "VISITED", 10)
    found = {}
    for offset, slope in ((0.0, 0.0), (7.0, 0.0), (0.0, 3.0)):
        torch.manual_seed(0)
        policy = make_ddpg_policy(STATES, TORQUES, 8)
        policy.network.critics[0] = Told(offset, slope)
        found[offset, slope] = landscapes.landscape(policy)
    plain, lifted, tilted = found.values()
    assert np.isclose(lifted["offset"] - plain["offset"], 7.0, atol=1e-3)
    assert np.isclose(lifted["ridge"], plain["ridge"], atol=1e-3)
    # A critic that knows no difference errs by as much as the true values vary.
    assert np.isclose(plain["ridge"], plain["spread"], rtol=1e-3)
    assert np.isclose(tilted["offset"], plain["offset"], atol=1e-3)
    assert tilted["ridge"] > 2
    assert plain["lost"] >= 0
