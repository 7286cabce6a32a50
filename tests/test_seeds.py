"""The tests that the described systems print themselves, run against the package.

They are kept as their authors wrote them, save where a value is invalid.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
import warnings
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
import treetensor.torch as ttorch
from gymnasium import spaces
from torch.distributions import Categorical, Normal

import literate_rl
from literate_rl import (
    DisjointPolicyValueNetwork,
    HybridPolicyNetwork,
    IMPALAPolicy,
    PPGAuxAlgorithm,
    PPGAuxPhaseLoss,
    PPGRolloutInfo,
    PPGTrainInfo,
    TimeStep,
    ppg_network_forward,
    ppo_policy_data,
    ppo_policy_error,
    sample_hybrid_action,
    vtrace_data,
    vtrace_error_continuous_action,
    vtrace_error_discrete_action,
)
from literate_rl.apps.training import ALGORITHMS
from literate_rl.ground.nests import map_nest
from literate_rl.interfaces.ding import IMPALAPolicyConfig

ROOT = Path(__file__).parents[1]
# What the described systems are about stands on the path. Only how they are called, the
# conventions of a library, may be an adapter.
PLACES = {
    "ppo_error": "ppo_policy_data ppo_policy_error ppo_policy_loss ppo_info",
    "hybrid_action": "HybridPolicyNetwork sample_hybrid_action",
    "disjoint_network": "DisjointPolicyValueNetwork",
    "ppg": "PPGAlgorithm PPGAuxPhaseLossInfo element_wise_squared_loss",
    "interfaces.alf": "AlgStep LossInfo PPGAuxAlgorithm PPGAuxOptions PPGAuxPhaseLoss "
    "PPGRolloutInfo PPGTrainInfo TimeStep ppg_network_forward",
    "off_policy": "vtrace_data vtrace_error_continuous_action "
    "vtrace_error_discrete_action",
    "impala": "IMPALAConfig VTraceLearner",
    # The page of contracts has no names but those of its families and of its examples.
    "contracts": "CONTRACTS check_model",
    "contract_models": "QNetwork DuelingQNetwork CategoricalQNetwork "
    "DeterministicActor ProbabilityActor CategoricalActor SquashedGaussianActor "
    "StateValue ActionValue",
    "interfaces.ding": "IMPALAPolicy",
}


@pytest.mark.parametrize("module", PLACES)
def test_each_name_can_be_taken_from_the_top(module):
    home = importlib.import_module(f"literate_rl.{module}")
    for name in PLACES[module].split():
        assert name in home.__all__
        assert getattr(literate_rl, name) is getattr(home, name)


@pytest.mark.parametrize("clip_ratio", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_ppo(clip_ratio, dual_clip):
    """PPOxFamily's test of the policy error (its own dual clip of 0.5 is invalid)."""
    B, N = 4, 32  # noqa: N806 (the names of the original)
    logit_new = torch.randn(B, N).requires_grad_(True)
    logit_old = logit_new + torch.rand_like(logit_new) * 0.1
    action = torch.randint(0, N, size=(B,))
    adv = torch.rand(B)
    data = ppo_policy_data(logit_new, logit_old, action, adv, None)
    loss, info = ppo_policy_error(data, clip_ratio=clip_ratio, dual_clip=dual_clip)
    assert all(np.isscalar(i) for i in info)
    assert logit_new.grad is None
    total_loss = sum(loss)
    total_loss.backward()
    assert isinstance(logit_new.grad, torch.Tensor)


def test_sample_hybrid_action():
    """PPOxFamily's test of the hybrid policy."""
    B, obs_shape = 4, 10  # noqa: N806 (the names of the original)
    action_shape = {"action_type_shape": 3, "action_args_shape": 3}
    mask = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    state = torch.rand(B, obs_shape)
    policy_network = HybridPolicyNetwork(obs_shape, action_shape)
    logit = policy_network(state)
    assert isinstance(logit, ttorch.Tensor)
    assert logit.action_type.shape == (B, action_shape["action_type_shape"])
    assert logit.action_args.mu.shape == (B, action_shape["action_args_shape"])
    assert logit.action_args.sigma.shape == (B, action_shape["action_args_shape"])
    action = sample_hybrid_action(logit)
    assert action.action_type.shape == (B,)
    assert action.action_args.shape == (B, action_shape["action_args_shape"])
    data_mask = torch.as_tensor([mask[i] for i in action.action_type]).bool()
    filtered_action_args = ttorch.masked_select(action.action_args, data_mask)
    action.action_args = filtered_action_args
    assert action.action_args.shape == (B,)
    selected_action = action[1:3]
    assert selected_action.action_type.shape == (2,)


def test_disjoint_network_as_documented():
    """The constructor and the forward pass as ALF's documentation describes them."""
    network = DisjointPolicyValueNetwork(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    output, state = network.forward(torch.randn(4, 3), ())
    assert len(output) == len(state) == 3
    output, _ = network.forward(torch.randn(4, 3), (), require_aux=False)
    assert output[2] == ()


def test_ppg_as_documented():
    """The path from a rollout to the loss as ALF's documentation describes it."""
    box, two = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
    network = DisjointPolicyValueNetwork(box, two)
    algorithm = PPGAuxAlgorithm(box, two, dual_actor_value_network=network)
    assert algorithm.interval == 32
    assert algorithm.network is network
    inputs = TimeStep(torch.ones(4), torch.ones(4), torch.ones(4), torch.randn(4, 3))
    info = ppg_network_forward(network, inputs, ()).info
    assert isinstance(info, PPGRolloutInfo)
    algorithm.observe_for_aux_replay((inputs.observation, info))
    _, stored = algorithm.buffer[0]
    # A chunk of one step, (T, B).
    chunk, stored = map_nest(lambda x: x.unsqueeze(0), (inputs, stored))
    step = algorithm.train_step(chunk, (), stored)
    assert isinstance(step.info, PPGTrainInfo)
    loss_info = algorithm.calc_loss(step.info)
    assert loss_info.loss.shape == (1, 4)
    assert torch.equal(loss_info.loss, PPGAuxPhaseLoss()(step.info).loss)


def test_vtrace_discrete_action():
    """DI-engine's test of the discrete losses; the sum as it stands there."""
    T, B, N = 4, 8, 16  # noqa: N806 (the names of the original)
    value = torch.randn(T + 1, B).requires_grad_(True)
    reward = torch.rand(T, B)
    target_output = torch.randn(T, B, N).requires_grad_(True)
    behaviour_output = torch.randn(T, B, N)
    action = torch.randint(0, N, size=(T, B))
    data = vtrace_data(target_output, behaviour_output, action, value, reward, None)
    loss = vtrace_error_discrete_action(data, rho_clip_ratio=1.1)
    assert all(part.shape == () for part in loss)
    assert target_output.grad is None
    assert value.grad is None
    sum(loss).backward()
    assert isinstance(target_output.grad, torch.Tensor)
    assert isinstance(value.grad, torch.Tensor)


def test_vtrace_continuous_action():
    """DI-engine's test of the continuous losses; the sum as it stands there."""
    T, B, N = 4, 8, 16  # noqa: N806 (the names of the original)
    value = torch.randn(T + 1, B).requires_grad_(True)
    reward = torch.rand(T, B)
    mu = torch.randn(T, B, N).requires_grad_(True)
    sigma = torch.exp(torch.randn(T, B, N)).requires_grad_(True)
    target_output = {"mu": mu, "sigma": sigma}
    behaviour_output = {
        "mu": torch.randn(T, B, N),
        "sigma": torch.exp(torch.randn(T, B, N)),
    }
    action = torch.randn((T, B, N))
    data = vtrace_data(target_output, behaviour_output, action, value, reward, None)
    loss = vtrace_error_continuous_action(data, rho_clip_ratio=1.1)
    assert all(part.shape == () for part in loss)
    sum(loss).backward()
    assert all(isinstance(x.grad, torch.Tensor) for x in (mu, sigma, value))


def test_impala_as_documented():
    """The configuration and the three modes as DI-engine's documentation has them."""
    config = {
        "type": "impala",
        "cuda": False,
        "on_policy": False,
        "priority": False,
        "priority_IS_weight": False,
        "action_space": "discrete",
        "unroll_len": 4,
        "transition_with_policy_data": True,
        "learn": {"update_per_collect": 4, "batch_size": 16, "learning_rate": 0.0005},
        "collect": {},
        "eval": {},
        "other": {"replay_buffer": {"replay_buffer_size": 1000, "max_use": 16}},
        "model": {"obs_shape": 3, "action_shape": 2},
    }
    policy = IMPALAPolicy(config)
    assert policy.cfg == IMPALAPolicyConfig(
        unroll_len=4, model={"obs_shape": 3, "action_shape": 2}
    )
    name, modules = policy.default_model()
    assert isinstance(name, str)
    assert isinstance(modules, list)

    timestep = namedtuple("timestep", ["obs", "reward", "done", "info"])
    obs, rows = {i: torch.randn(3) for i in (0, 1)}, {0: [], 1: []}
    for t in range(4):
        output = policy.forward_collect(obs)
        assert list(output) == list(obs)
        for i in obs:
            assert output[i].keys() == {"logit", "action"}
            answer = timestep(torch.randn(3), torch.ones(1), t == 3, {})
            rows[i].append(policy.process_transition(obs[i], output[i], answer))
            obs[i] = answer.obs
    documented = {"obs", "next_obs", "action", "logit", "reward", "done"}
    assert documented <= rows[0][0].keys()
    samples = [sample for i in rows for sample in policy.get_train_sample(rows[i])]
    data = policy.data_preprocess_learn(samples)
    assert {*documented, "weight", "obs_plus_1"} <= data.keys()
    assert data["logit"].shape == (4, 2, 2)
    info = policy.forward_learn(samples)
    documented = {"cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss"}
    assert documented <= info.keys()
    assert documented <= set(policy.monitor_vars_learn())
    assert all(np.isscalar(number) for number in info.values())
    assert policy.forward_eval(obs)[1]["action"].shape == ()


# --- Contracts ------------------------------------------------------------------------

FAMILIES = (
    "DQN DQNPer DQNApex RAINBOW DDPG DDPGPer DDPGApex HDDPG TD3 A2C PPO A3C IMPALA SAC"
)
# What the contract page's twelve examples come to: they pass, they pass after the
# change in words, or the checker refuses them by these rules.
EXAMPLES = {
    "DQN QNet": "sizes",
    "dueling QNet": "",
    "RAINBOW QNet": "sizes",
    "DDPG Actor": "indented",
    "DDPG ActorDiscrete": "",
    "DDPG Critic": "",
    "SAC Critic": "",
    "A2C Actor": "action action_log_prob distribution_entropy",
    "SAC Actor": "results",
    "A2C ActorContiguous": "distribution_entropy as_it_is judged_alike",
    "A2C Critic": "",
    "SAC ActorContiguous": "distribution_entropy as_it_is judged_alike",
}


def examples_of_the_contract_page() -> dict[str, str]:
    """Return the twelve classes as their page prints them, by family and name."""
    chapter = ROOT / "chapters" / "contract_models.py"
    text = chapter.read_text("utf-8")
    # What two families share is printed once, and a few lines take it apart.
    first, last = text.index('MACHIN = """'), text.index("def build(text, *sizes)")
    names: dict[str, Any] = {"re": re}
    exec(text[first:last], names)
    quotes: dict[str, str] = names["quotes"]
    return quotes


def test_every_family_of_the_contract_page_has_its_contract_and_is_trained():
    assert {name.lower() for name in FAMILIES.split()} <= set(ALGORITHMS)
    assert {*FAMILIES.split(), "Dueling"} == set(literate_rl.CONTRACTS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_contract_page(name):
    text, outcome = examples_of_the_contract_page()[name], EXAMPLES[name]
    if outcome == "indented":
        first, _, methods = text.partition("\n")
        text = f"{first}\n{textwrap.indent(methods, '    ')}"
    names = {"t": torch, "nn": torch.nn, "softplus": torch.nn.functional.softplus}
    names |= {"Categorical": Categorical, "Normal": Normal}
    exec(text.replace("super(Actor, self)", "super()"), names)

    family, title = name.replace("dueling", "Dueling").split()
    box = spaces.Box(-2.0, 2.0, (2,))
    discrete = title in ("QNet", "ActorDiscrete") or name in ("A2C Actor", "SAC Actor")
    state = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    states = {"state": state}
    if family == "Dueling":
        states = {"some_state": state}
    sizes = (8 if outcome == "sizes" else 4, 2, 2.0)
    if outcome == "sizes":
        states["state2"] = state.flip(0)
    built = names[title]
    wanted = len(inspect.signature(built).parameters)
    part = {"Q": "qnet", "A": "actor", "C": "critic"}[title[0]]
    torch.manual_seed(0)
    model = built(*sizes[: 2 if title == "QNet" else wanted])
    space = spaces.Discrete(2) if discrete else box
    rules: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            literate_rl.check_model(
                family, **{part: model}, states=states, action_space=space
            )
        except literate_rl.ContractError as error:
            rules = [x.rule for x in error.broken]
    changed = outcome in ("sizes", "indented")
    assert rules == ([] if changed else outcome.split())
