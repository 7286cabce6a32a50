"""Between REINFORCE and PPO: advantages by GAE, one update for each rollout, no clip.

``python -m benchmarks.a2c_learning`` works as ``benchmarks.learning`` does. The learner
is PPO's with one epoch, one minibatch and a clip range that nothing leaves; that is
advantage actor-critic, A2C. Its length of a rollout, learning rate, discount and lambda
were chosen among ten settings, by three runs of each with the seeds 100 to 102.
"""

from __future__ import annotations

from benchmarks.learning import Experiment, Variant, main
from literate_rl.ppo import PPOConfig

EXPERIMENTS = {
    "a2c": Experiment(
        "CartPole-v1",
        PPOConfig(
            total_steps=50_000,
            num_envs=8,
            num_steps=32,
            num_epochs=1,
            num_minibatches=1,
            learning_rate=5e-3,
            clip_ratio=1e9,
            entropy_weight=0.0,
        ),
        seeds=20,
        episodes=100,
        variants={"A2C": Variant({})},
    )
}


if __name__ == "__main__":
    main("python -m benchmarks.a2c_learning", EXPERIMENTS)
