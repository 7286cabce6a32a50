"""Acting and judging with hybrid actions beside torch.distributions.

Acting is what an agent does at each step: from states to actions, with the network.
No agent here asks for log-probabilities or entropies while it acts; PPO wants the
log-probabilities of a whole rollout afterwards, in one call that is less than a
hundredth of an iteration. So the goals are on acting. The other cases sample and judge
at each step, with the class and with the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import treetensor.torch as ttorch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from benchmarks.harness import SEED, Case, Goal
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.ground.protocols import Act
from literate_rl.maths.fast import hybrid_terms, log_softmax
from literate_rl.nets.hybrid_action import HybridDistribution, HybridPolicyNetwork, draw
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.policies import Policy

ROUNDS = 51
TYPES, ARGUMENTS = 3, 3
# Of acting in NumPy, by the number of states.
GOALS = {8: 4.7, 64: 4.7, 256: 4.1, 4096: 1.7}
STEPS, STATE = 64, 10
MASK = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.bool)

Answer = tuple[Tensor, Tensor, Tensor, Tensor]


def distributions_form(logit: ttorch.Tensor, validate: bool) -> Answer:
    """Sample and judge as PPOxFamily's tutorial samples, with the mask added."""
    prob = torch.softmax(logit.action_type, dim=-1)
    types = Categorical(probs=prob, validate_args=validate)
    normal = Normal(
        logit.action_args.mu, logit.action_args.sigma, validate_args=validate
    )
    action_type = types.sample()
    action_args = Independent(normal, 1, validate_args=validate).sample()

    used = MASK[action_type]
    log_density = normal.log_prob(action_args)
    log_prob = types.log_prob(action_type)
    log_prob = log_prob + torch.where(used, log_density, 0.0).sum(-1)
    entropy = types.entropy() + (prob @ MASK.float() * normal.entropy()).sum(-1)
    return action_type, action_args, log_prob, entropy


def plain_form(logit: ttorch.Tensor) -> Answer:
    """Sample and judge with the class of the chapter."""
    policy = HybridDistribution(logit, MASK)
    action = policy.sample()
    return (
        action.action_type,
        action.action_args,
        policy.log_prob(action),
        policy.entropy(),
    )


def kernel(logit: ttorch.Tensor) -> Answer:
    """Sample as the class does, and judge with the learner's kernel."""
    z, mu, sigma = logit.action_type, logit.action_args.mu, logit.action_args.sigma
    action = draw(log_softmax(z).exp(), mu, sigma, None)
    action_type, action_args = action.action_type, action.action_args
    return (
        action_type,
        action_args,
        *hybrid_terms(z, mu, sigma, MASK, action_type, action_args),
    )


def policy(batch: int) -> ttorch.Tensor:
    """Return what a network might say of a batch of states."""
    generator = torch.Generator().manual_seed(SEED)
    mu = torch.randn(batch, ARGUMENTS, generator=generator)
    sigma = torch.rand(batch, ARGUMENTS, generator=generator) + 0.5
    logits = torch.randn(batch, TYPES, generator=generator)
    return ttorch.as_tensor(
        {"action_type": logits, "action_args": {"mu": mu, "sigma": sigma}}
    )


def check(logit: ttorch.Tensor) -> None:
    """Assert that the forms judge their actions as float64 formulas do."""
    log_p = logit.action_type.double().log_softmax(-1)
    mu, sigma = logit.action_args.mu.double(), logit.action_args.sigma.double()
    unit = 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    for answer in (distributions_form(logit, True), plain_form(logit), kernel(logit)):
        action_type, action_args, log_prob, entropy = answer
        z = (action_args.double() - mu) / sigma
        density = -0.5 * z.square() - sigma.log() - unit
        taken = log_p.gather(1, action_type.unsqueeze(1)).squeeze(1)
        expected = taken + (density * MASK[action_type]).sum(-1)
        torch.testing.assert_close(log_prob.double(), expected, rtol=1e-5, atol=1e-5)
        args_entropy = 0.5 + unit + sigma.log()
        expected = -(log_p.exp() * log_p).sum(-1)
        expected += (log_p.exp() @ MASK.double() * args_entropy).sum(-1)
        torch.testing.assert_close(entropy.double(), expected, rtol=1e-5, atol=1e-5)


# --- Acting ---------------------------------------------------------------------------


def agent() -> Policy:
    """Return an untrained policy with the network of PPOxFamily's tutorial."""
    torch.manual_seed(SEED)
    seen = spaces.Box(-1, 1, (STATE,))
    args = spaces.Box(-1, 1, (ARGUMENTS,))
    done = spaces.Tuple((spaces.Discrete(TYPES), args))
    return make_hybrid_policy(seen, done, MASK)


def heads(network: HybridPolicyNetwork, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the network says of states, without trees and checks."""
    features = network.encoder(obs)
    mu = network.action_args_mu(features)
    log_sigma = network.action_args_log_sigma + torch.zeros_like(mu)
    return network.action_type_head(features), mu, log_sigma.exp()


@torch.no_grad()
def distributions_act(
    network: HybridPolicyNetwork, obs: Tensor, validate: bool
) -> None:
    """Act for some steps as PPOxFamily's tutorial samples."""
    for _ in range(STEPS):
        logit, mu, sigma = heads(network, obs)
        prob = torch.softmax(logit, dim=-1)
        types = Categorical(probs=prob, validate_args=validate)
        normal = Normal(mu, sigma, validate_args=validate)
        types.sample()
        Independent(normal, 1, validate_args=validate).sample()


@torch.no_grad()
def own_act(own: Policy, obs: Tensor, form: Act) -> None:
    """Act for as many steps, with the noise of a rollout, as a ``Runner`` does."""
    for noise in own.noise(STEPS, len(obs), torch.default_generator):
        form(obs, noise)


@torch.no_grad()
def check_acting(own: Policy, network: HybridPolicyNetwork, obs: Tensor) -> None:
    """Assert that all draw from the same rows, and that both acts draw the same."""
    torch.testing.assert_close(torch.cat(heads(network, obs), -1), own(obs))
    noise = own.noise(1, len(obs), torch.default_generator)[0]
    fast, plain = numpy_act(own)(obs, noise), own.act(obs, noise)
    assert torch.equal(fast[:, 0], plain[:, 0])
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=1e-6)


def acting(own: Policy, size: int, goal: float) -> Case:
    """Return the case of acting at a number of states, after its check."""
    network: Any = own.network
    network, fast = network.actor.network, numpy_act(own)
    obs = torch.randn(size, STATE)
    check_acting(own, network, obs)
    return Case(
        name=f"acting, B = {size}",
        functions={
            "torch.distributions": lambda: distributions_act(network, obs, True),
            "the same, not validated": lambda: distributions_act(network, obs, False),
            "policy.act": lambda: own_act(own, obs, own.act),
            "numpy_act": lambda: own_act(own, obs, fast),
        },
        peer="torch.distributions",
        goals={"numpy_act": Goal(at_least=goal)},
    )


# --- All cases ------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Yield the batch sizes, each after its check."""
    own = agent()
    for size, goal in GOALS.items():
        yield acting(own, size, goal)
    for size in GOALS:
        logit = policy(size)
        check(logit)
        yield Case(
            name=f"B = {size}",
            functions={
                "torch.distributions": lambda x=logit: distributions_form(x, True),
                "the same, not validated": lambda x=logit: distributions_form(x, False),
                "HybridDistribution": lambda x=logit: plain_form(x),
                "hybrid_terms": lambda x=logit: kernel(x),
            },
            peer="torch.distributions",
        )
