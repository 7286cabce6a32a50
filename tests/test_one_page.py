"""A program on one page and the class of its chapter learn alike, batch by batch."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from literate_rl.apps.programs import drawn_batches, run_program
from literate_rl.data.agents import make_envs
from literate_rl.learners.ddpg import DDPG, DDPGConfig, make_ddpg_policy
from literate_rl.learners.discrete_sac import (
    DiscreteSAC,
    discrete_sac_settings,
    make_discrete_sac_policy,
)
from literate_rl.learners.impala import IMPALA, IMPALAConfig
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.learners.sac import SAC, SACConfig, make_sac_policy
from literate_rl.learners.td3 import TD3, TD3Config
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.nets.recurrent import RecurrentPolicy, make_recurrent_policy

LISTED = replace(discrete_sac_settings("CartPole-v1"), anneal=False)
TWINS = partial(make_ddpg_policy, num_critics=2)
# Each program's class, policy, settings, environments and steps before ten batches.
LEARNERS: dict[str, tuple[Any, ...]] = {
    "ddpg": (DDPG, make_ddpg_policy, DDPGConfig(), 1, 510),
    "td3": (TD3, TWINS, TD3Config(tau=0.01), 1, 510),
    "sac": (SAC, make_sac_policy, SACConfig(), 1, 510),
    "discrete_sac": (
        DiscreteSAC,
        partial(make_discrete_sac_policy, hidden=LISTED.hidden),
        LISTED,
        4,
        1040,
    ),
}


@pytest.mark.parametrize("name", list(LEARNERS))
def test_an_off_policy_program_learns_as_its_class_does(name: str) -> None:
    make, make_it, config, num_envs, total_steps = LEARNERS[name]
    batches, names = drawn_batches(name, total_steps=total_steps)
    envs = make_envs(names["env_id"], num_envs)
    torch.manual_seed(1)
    policy = make_it(envs.single_observation_space, envs.single_action_space)
    learner = make(policy, envs, config)
    for batch, state in batches:
        scaled = batch._replace(reward=batch.reward * config.reward_scale)
        learner.sample = lambda batch=scaled: batch
        learner.generator.set_state(state)
        learner.learn()
    envs.close()
    assert len(batches) == 10
    critics = names["critics"] if "critics" in names else names["critic"]
    ours = [*names["actor"].parameters(), *critics.parameters()]
    if name in ("ddpg", "td3"):
        theirs = [*policy.network.parameters()]
    else:
        theirs = [*policy.network.parameters(), *policy.critics.parameters()]
        ours, theirs = [*ours, names["log_alpha"]], [*theirs, policy.log_alpha]
    for x, y in zip(ours, theirs, strict=True):
        assert torch.allclose(x, y, atol=1e-5), "the same weights"


class Drawn(CategoricalActions):
    """Samples each action when it is due, as the program of IMPALA does."""

    def __init__(self, num_actions: int) -> None:
        super().__init__(num_actions)
        self.generator = torch.Generator().manual_seed(1)

    def choose(self, row: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        prob = row.softmax(-1)
        return torch.multinomial(prob, 1, generator=self.generator).squeeze(-1)


def test_the_program_of_impala_learns_as_its_class_does() -> None:
    names = run_program("impala", seed=1, total_steps=5_000)
    same = {key: names[key] for key in ("total_steps", "lag", "learning_rate")}
    same |= {key: names[key] for key in ("reward_scale", "entropy_weight")}
    config = IMPALAConfig(**same, anneal=True, on_policy=True, checkpoint_interval=1000)
    envs = make_envs("CartPole-v1", names["num_envs"])
    torch.manual_seed(1)
    built = make_policy(envs.single_observation_space, envs.single_action_space)
    agent = IMPALA(Policy(built.network, Drawn(names["num_actions"])), envs, config)
    agent.collector.reset(1000)
    agent.iteration = names["lag"] + 1  # not due for a reset with another seed
    while agent.step < 5_000:
        agent.iterate()
    envs.close()
    parameters = [*names["policy"].parameters(), *names["critic"].parameters()]
    for ours, theirs in zip(parameters, agent.learner.parameters, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4), "the same weights"


class DrawnInTurn(CategoricalActions):
    """Samples each action when it is due, as the program does."""

    def noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Any:
        self.generator = generator
        return torch.zeros(num_steps, 1)

    def choose(self, row: Any, noise: Any) -> Any:
        prob = row.softmax(-1)
        return torch.multinomial(prob, 1, generator=self.generator).squeeze(-1)


def test_the_recurrent_program_learns_as_ppo_does() -> None:
    made = run_program("recurrent", total_steps=2_048)
    config = PPOConfig(
        num_envs=16,
        num_steps=64,
        learning_rate=3e-3,
        anneal=False,
        gamma=0.98,
        lambda_=0.9,
        recurrent="gru",
    )
    envs = make_envs("literate_rl/TMaze-v0", 16)
    torch.manual_seed(1)
    memory = torch.nn.GRUCell(3, 32)
    heads = torch.nn.Linear(32, 3), torch.nn.Linear(32, 1)
    spaces = envs.single_observation_space, envs.single_action_space
    built = make_recurrent_policy(*spaces, "gru", 32, share_encoder=True)
    network = built.network
    weights = [*memory.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    with torch.no_grad():
        memory.bias_ih[32:64] = 1.0
        for mine, theirs in zip(network.parameters(), weights, strict=True):
            mine.copy_(theirs)
    learner = PPO(RecurrentPolicy(network, DrawnInTurn(3)), envs, config)
    learner.collector.reset(1000)
    learner.iteration = 1  # not due for a reset with another seed
    learner.iterate()
    learner.iterate()
    envs.close()
    for mine, theirs in zip(
        network.parameters(), made["networks"].parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
