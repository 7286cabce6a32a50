"""A program on one page and the class of its chapter learn alike, batch by batch."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from literate_rl.apps.programs import drawn_batches, run_program
from literate_rl.apps.training import ALGORITHMS, make_learner
from literate_rl.data.agents import make_envs
from literate_rl.learners.impala import IMPALA, IMPALAConfig
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.nets.recurrent import RecurrentPolicy, make_recurrent_policy

# Of an off-policy program its networks, what it sets otherwise than `train`, its steps.
PROGRAMS: dict[str, tuple[str, dict[str, Any], int]] = {
    "dqn": ("network", {"dueling": False}, 1040),
    # Batches come with their weights.
    "rainbow": ("network", {"priority_exponent": 0.0}, 1040),
    "ddpg": ("actor critic", {}, 510),
    "td3": ("actor critics", {"tau": 0.01}, 510),
    "sac": ("actor critics", {}, 510),
    "discrete_sac": ("actor critics", {}, 1040),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_off_policy_program_learns_as_its_class_does(name):
    """Given the batches and the state of the generator, both end alike."""
    parts, changes, total_steps = PROGRAMS[name]
    batches, names = drawn_batches(name, total_steps=total_steps)
    row, env = name.removeprefix("discrete_"), names["env_id"]
    config = ALGORITHMS[row].settings(env)
    config = replace(config, max_grad_norm=math.inf, **changes)
    torch.manual_seed(1)
    learner: Any = make_learner(row, env, config, {}, fast="plain")
    weights = dict(learner.policy.named_parameters())
    start = [p.detach().clone() for p in weights.values()]
    for number, (batch, state) in enumerate(batches):
        if parts == "network":  # two updates after each round of four steps
            rate = 1 - (1000 + 4 * (number // 2)) / total_steps
            learner.optimizer.param_groups[0]["lr"] = config.learning_rate * rate
        scaled = batch._replace(reward=batch.reward * config.reward_scale)
        learner.sample = lambda batch=scaled: batch
        learner.generator.set_state(state)
        learner.learn()
    assert len(batches) >= 10
    assert not any(map(torch.equal, weights.values(), start))
    if "log_alpha" in weights:
        torch.testing.assert_close(weights.pop("log_alpha"), names["log_alpha"])
    theirs = [p for part in parts.split() for p in names[part].parameters()]
    for x, y in zip(weights.values(), theirs, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


class DrawnInTurn(CategoricalActions):
    """Samples each action when it is due, as the programs do."""

    source: Any = None

    def noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Any:
        self.source = self.source or generator
        return torch.zeros(num_steps, 1)

    def choose(self, row: Any, noise: Any) -> Any:
        prob = row.softmax(-1)
        return torch.multinomial(prob, 1, generator=self.source).squeeze(-1)


def test_the_program_of_impala_learns_as_its_class_does():
    names = run_program("impala", seed=1, total_steps=5_000)
    same = {key: names[key] for key in ("total_steps", "lag", "learning_rate")}
    same |= {key: names[key] for key in ("reward_scale", "entropy_weight")}
    config = IMPALAConfig(**same, anneal=True, on_policy=True, checkpoint_interval=1000)
    envs = make_envs("CartPole-v1", names["num_envs"])
    torch.manual_seed(1)
    built = make_policy(envs.single_observation_space, envs.single_action_space)
    actions = DrawnInTurn(names["num_actions"])
    actions.source = torch.Generator().manual_seed(1)
    agent = IMPALA(Policy(built.network, actions), envs, config)
    agent.collector.reset(1000)
    agent.iteration = names["lag"] + 1  # not due for a reset with another seed
    while agent.step < 5_000:
        agent.iterate()
    envs.close()
    parameters = [*names["policy"].parameters(), *names["critic"].parameters()]
    for ours, theirs in zip(parameters, agent.learner.parameters, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4), "the same weights"


def test_the_recurrent_program_learns_as_ppo_does():
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
