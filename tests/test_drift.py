"""The judges that tell a fallen pole from a cart that left the track."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from benchmarks.drift import EDGE, GAMMA, greedy, left_the_track, returns


def controller(lean):
    """Return a policy that holds the pole at an angle, and so drifts to that side."""
    return SimpleNamespace(
        act=lambda obs, noise: (obs[:, 2] + 0.3 * obs[:, 3] > lean).long(),
        to_env=lambda action: action.numpy(),
        noise=lambda rows, number, generator: torch.zeros(rows, number),
    )


def test_a_leaning_pole_drives_the_cart_from_the_track():
    assert left_the_track(controller(-10.0)) == 0, "a pole that falls"
    policy = controller(0.03)
    _, last = greedy(policy)
    assert left_the_track(policy) == (abs(last[:, 0]) > EDGE).mean() > 0.3


@pytest.mark.parametrize("push", [0, 1])
def test_returns_are_those_of_one_cart_after_the_other(push):
    policy = controller(0.03)
    states = np.array([[0.7, 0.5, 0.03, 0.1], [1.5, 1.0, 0.05, 0.0]], np.float32)
    wanted = []
    for state in states:
        env = gym.make("CartPole-v1").unwrapped
        env.reset()
        env.state, action, total, step, done = state, push, 0.0, 0, False
        while not done and GAMMA**step > 1e-3:
            obs, _, done, _, _ = env.step(int(action))
            total += GAMMA**step
            step += 1
            action = policy.act(torch.from_numpy(obs)[None], None)[0]
        wanted.append(total)
    assert returns(policy, states, push).tolist() == pytest.approx(wanted, rel=1e-3)
