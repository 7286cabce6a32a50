# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Models that keep a contract
#
# **What does a model look like that keeps its contract, and where do published ones break it?**
# After this chapter you can write the hardest of these models, an actor whose continuous actions
# stay in a box. You have a correct model for each of the six roles, and you can find and fix the
# mistakes in the models of others.
#
# Reading takes about 20 minutes. You need {doc}`contracts`, and the Gaussian policy of
# {doc}`policies`.

# %% tags=["export", "hide-input"]
"""Models that keep a contract: one for each role that an algorithm may ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from literate_rl.ground.networks import Stretch, layers, squashed_log_prob

__all__ = [
    "ActionValue",
    "CategoricalActor",
    "CategoricalQNetwork",
    "DeterministicActor",
    "DuelingQNetwork",
    "ProbabilityActor",
    "QNetwork",
    "SquashedGaussianActor",
    "StateValue",
]

# %% [markdown]
# ## A Gaussian in a box
#
# To keep its actions in a box, an actor draws $u_j = \mu_j + \sigma_j \eta_j$, where $\eta_j$ is
# standard normal noise, and **squashes** it {cite:p}`haarnoja2018`. With $\bar a$ the middle of
# the box and $h$ half of its width,
#
# $$
# a_j = \bar a_j + h_j \tanh u_j .
# $$ (def-squash)
#
# The squash changes the density of the actions. Move the sliders. The bars
# are 20,000 actions in a box from −1 to 1. The solid curve is their density as it should be, the
# dashed one is the density of $u$ at the same actions.

# %% tags=["hide-input"]
import math

import torch

from literate_rl.book.pictures import Axis, Mark, dial, plot

eta = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
edges = torch.linspace(-1, 1, 26)
middles = ((edges[1:] + edges[:-1]) / 2).tolist()
points = torch.linspace(-0.995, 0.995, 200)
sigmas, means = [0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0], [0.0, 0.5, 1.0]


def densities(u, sigma, mean):
    """Return both densities at the actions that come of u: with and without Jacobian."""
    mu, log_sigma = torch.full_like(u, mean), torch.full_like(u, math.log(sigma))
    right = squashed_log_prob(u, mu, log_sigma, torch.ones(1).to(u)).exp()
    return right, torch.distributions.Normal(mu, sigma).log_prob(u).exp().squeeze(-1)


def areas(sigma, mean):
    """Return the areas below both densities, from points that come close to the edges."""
    u = torch.linspace(-16, 16, 4001, dtype=torch.float64).unsqueeze(-1)
    action = u.tanh().squeeze(-1)
    return [torch.trapezoid(x, action).item() for x in densities(u, sigma, mean)]


def entropies(sigma, mean):
    """Return the entropy before the squash, by its formula, and that of the actions."""
    u = mean + torch.linspace(-8, 8, 4001, dtype=torch.float64).unsqueeze(-1) * sigma
    log_prob = densities(u, sigma, mean)[0].log()
    weight = torch.distributions.Normal(mean, sigma).log_prob(u).exp().squeeze(-1)
    after = -torch.trapezoid(weight * log_prob, u.squeeze(-1)).item()
    return 0.5 * math.log(2 * math.pi * math.e) + math.log(sigma), after


def frame(sigma, mean):
    bars = torch.histc((mean + sigma * eta).tanh(), 25, -1, 1) / len(eta) * 25 / 2
    right, wrong = densities(torch.atanh(points).unsqueeze(-1), sigma, mean)
    picture = plot(
        "Actions, and two densities",
        "Bars of drawn actions. The density with the Jacobian follows them; the one without "
        "it lies below or above.",
        Axis("action", -1, 1, ticks=(-1, 0, 1)),
        Axis("density", 0, 3, ticks=(0, 1, 2, 3)),
        Mark("bars", middles, bars.clamp(max=3).tolist(), "faint"),
        Mark("line thick", points.tolist(), right.clamp(max=3).tolist(), "accent"),
        Mark("line dashed", points.tolist(), wrong.clamp(max=3).tolist(), "second"),
        width=460,
    )
    with_it, without = areas(sigma, mean)
    before, after = entropies(sigma, mean)
    return [picture], (
        f"area with the Jacobian {with_it:.2f}, without it {without:.2f}\n"
        f"entropy of u {before:.2f}, of the actions {after:.2f}"
    )


dial("A density and its squash", frame, {"σ": sigmas, "μ": means}, start=(0.7, 0.0))

# %% [markdown]
# **Notice** that the area below the dashed curve is never 1, so it is not a density of actions at
# all. What is missing is how much the
# squash stretches or shrinks at each point: its derivative, $h_j (1 - \tanh^2 u_j)$. For a whole
# vector it is the determinant of the *Jacobian*, which is the product of these derivatives,
# because each number is squashed on its own. The density is divided by it. In logarithms
#
# $$
# \log \pi(a \mid s) = \sum_j \Bigl[ \log \mathcal N(u_j;\, \mu_j, \sigma_j^2)
#     - \log h_j - \log (1 - \tanh^2 u_j) \Bigr] .
# $$ (squashed-density)
#
# In this form the last term is infinite as soon as $\tanh u$ rounds to 1, which in float32
# happens for $u$ above about 9. Many programs add $10^{-6}$ inside the logarithm. Then the
# logarithm [stops at −13.8](/docs/errata.md#a-jacobian-that-saturates), however large $u$ is, and its gradient there is
# wrong. But $1 - \tanh^2 u = 4 / (e^u + e^{-u})^2$, and so
#
# $$
# \log (1 - \tanh^2 u) = 2 \, \bigl( \log 2 - u - \log (1 + e^{-2u}) \bigr) ,
# $$ (stable-jacobian)
#
# which is exact for every $u$. PyTorch calls $\log(1 + e^x)$ `softplus`, and `squashed_log_prob` of
# {doc}`ground/networks` computes both equations.

# %% tags=["claims"]
for mean in means:
    right, wrong = torch.tensor([areas(sigma, mean) for sigma in sigmas]).T
    assert abs(right - 1).max() < 0.01, "with the Jacobian the area is 1"
    assert wrong.max() < 0.97, "without it never"
before, after = torch.tensor([entropies(sigma, 0.0) for sigma in sigmas]).T
assert before.diff().min() > 0, "that of u grows without limit"
assert after.argmax() < len(sigmas) - 1, "the true one falls once σ is large"
assert torch.tensor(9.1).tanh() == 1 > torch.tensor(8.5).tanh()

# %% [markdown]
# An actor that uses it has two more pitfalls. The first is a *given* action, which must be
# turned back into $u$. Near the edges $\operatorname{artanh}$, the inverse of $\tanh$, magnifies every rounding error.
# So it is computed in float64, and only the two endpoints, where it would be infinite, are moved inwards, by
# one step of float32.
#
# The second is the entropy: no formula is known for that of a squashed Gaussian. That of the
# Gaussian before the squash is often returned instead. It grows without limit as $\sigma$ grows,
# while the true one falls once $\sigma$ is large, so an entropy bonus on it
# would drive the actions to the edges of the box. We use minus the log-probability of a fresh sample. On average it is
# the entropy, and through $u_j = \mu_j + \sigma_j \eta_j$ its gradient is right too.


# %% tags=["export"]
class SquashedGaussianActor(nn.Module):
    """Draws continuous actions inside their box: for SAC, and for A2C and PPO.

    Args:
        state_dim: Numbers in a state.
        low: Lower bounds of the actions.
        high: Upper bounds.
        hidden: Width of the hidden layers.
    """

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 64) -> None:
        super().__init__()
        self.box = Stretch(low, high)
        self.net = layers(state_dim, hidden, 2 * len(self.box.middle))

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, log-densities and entropies."""
        mu, log_sigma = self.net(state).chunk(2, -1)
        # Keep the standard deviation away from zero and from absurdly large numbers.
        log_sigma = log_sigma.clamp(-5.0, 2.0)
        describe = mu, log_sigma, self.box.half_width

        # Draw, with a gradient through the draw: this is what `rsample` does.
        fresh = mu + log_sigma.exp() * torch.randn_like(mu)
        entropy = -squashed_log_prob(fresh, *describe)

        # Judge what was drawn, or what was given.
        u = fresh if action is None else self.box.undo(action)
        log_prob = squashed_log_prob(u, *describe)
        action = self.box(fresh) if action is None else action
        return action, log_prob.unsqueeze(-1), entropy.unsqueeze(-1)

    def mode(self, state: Tensor) -> Tensor:
        """Return the actions without noise."""
        return self.box(self.net(state).chunk(2, -1)[0])


# %% [markdown]
# ## A model for each role
#
# The other roles hold no surprises. Their eight models are folded here, small enough to copy. One
# idea is worth a look: the dueling network {cite:p}`wang2016` adds a value of the state to an
# advantage of each action, and takes the mean of the advantages away, so that the two cannot
# trade a constant.


# %% tags=["export", "hide-input"]
class QNetwork(nn.Module):
    """Returns a Q value for each action: for DQN and its relatives."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values."""
        return self.net(state)


class DuelingQNetwork(nn.Module):
    """Returns Q values: the value of the state plus an advantage for each action."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(layers(state_dim, hidden, hidden), nn.ReLU())
        self.value, self.adv = nn.Linear(hidden, 1), nn.Linear(hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values, whose mean over the actions is the value of the state."""
        features = self.body(state)
        value, adv = self.value(features), self.adv(features)
        return value + adv - adv.mean(-1, keepdim=True)


class CategoricalQNetwork(nn.Module):
    """Returns a distribution over returns for each action: for Rainbow."""

    def __init__(
        self, state_dim: int, action_num: int, atom_num: int = 51, hidden: int = 64
    ) -> None:
        super().__init__()
        self.sizes = (action_num, atom_num)
        self.net = layers(state_dim, hidden, action_num * atom_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return the probabilities of the atoms."""
        return self.net(state).unflatten(-1, self.sizes).softmax(-1)


class DeterministicActor(nn.Module):
    """Returns a continuous action inside its box: for DDPG and its relatives."""

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 64) -> None:
        super().__init__()
        self.box = Stretch(low, high)
        self.net = layers(state_dim, hidden, len(self.box.middle))

    def forward(self, state: Tensor) -> Tensor:
        """Return actions."""
        return self.box(self.net(state))


class ProbabilityActor(nn.Module):
    """Returns the probabilities of discrete actions: for DDPG and its relatives."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return probabilities."""
        return self.net(state).softmax(-1)


class CategoricalActor(nn.Module):
    """Draws discrete actions: for A2C, PPO, A3C, IMPALA and SAC."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, log-probabilities, entropies, and all log-probabilities."""
        log_probs = self.net(state).log_softmax(-1)
        if action is None:
            action = torch.multinomial(log_probs.exp(), 1)
        entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
        return action, log_probs.gather(-1, action), entropy, log_probs

    def mode(self, state: Tensor) -> Tensor:
        """Return the most likely actions."""
        return self.net(state).argmax(-1, keepdim=True)


class StateValue(nn.Module):
    """Returns the value of a state: a critic for A2C, PPO, A3C and IMPALA."""

    def __init__(self, state_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Return values."""
        return self.net(state)


class ActionValue(nn.Module):
    """Returns the value of an action in a state: a critic for DDPG, TD3 and SAC."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim + action_dim, hidden, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return Q values."""
        return self.net(torch.cat([state, action], -1))


# %% [markdown]
# The checker of {doc}`contracts` has nothing to say about them.

# %%
from literate_rl.check.contracts import ContractError, check_model

pole, pendulum = "CartPole-v1", "Pendulum-v1"
push, critics = ([-2.0], [2.0]), [ActionValue(3, 1), ActionValue(3, 1)]
check_model("DQN", qnet=QNetwork(4, 2), env=pole)
check_model("Dueling", qnet=DuelingQNetwork(4, 2), env=pole)
check_model("RAINBOW", qnet=CategoricalQNetwork(4, 2), env=pole)
check_model("TD3", actor=DeterministicActor(3, *push), critic=critics, env=pendulum)
check_model("PPO", actor=CategoricalActor(4, 2), critic=StateValue(4), env=pole)
check_model("SAC", actor=SquashedGaussianActor(3, *push), critic=critics, env=pendulum)
check_model("SAC", actor=CategoricalActor(4, 2), critic=QNetwork(4, 2), env=pole)
check_model("DDPG", actor=ProbabilityActor(4, 2), env=pole)
print("eight checks, no complaint")

# %% [markdown]
# ## Twelve examples
#
# The page of [Machin](https://github.com/iffiX/machin) on which the contracts are based has twelve
# example classes. We run the checker on each of them, word for word as
# [an older
# edition](https://github.com/iffiX/machin/blob/32a8b936d9d52d060c71f54a9e272ea529efcfa8/docs/source/advance/algorithm_model_requirements.rst)
# prints them, because its mistakes are typical.

# %% tags=["hide-input"]
import re
import warnings

import torch as t
from gymnasium import spaces
from torch.distributions import Categorical, Normal
from torch.nn.functional import softplus

MACHIN = """
### DQN QNet
class QNet(nn.Module):
    def __init__(self, state_dim, action_num):
        super(QNet, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, state, state2):
        state = t.cat([state, state2], dim=1)
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        return self.fc3(a)

### dueling QNet
class QNet(nn.Module):
    def __init__(self, state_dim, action_num):
        super(QNet, self).__init__()
        self.action_num = action_num
        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc_adv = nn.Linear(16, action_num)
        self.fc_val = nn.Linear(16, 1)

    def forward(self, some_state):
        a = t.relu(self.fc1(some_state))
        a = t.relu(self.fc2(a))
        batch_size = a.shape[0]
        adv = self.fc_adv(a)
        val = self.fc_val(a).expand(batch_size, self.action_num)
        return val + adv - adv.mean(1, keepdim=True)

### RAINBOW QNet
class QNet(nn.Module):
    def __init__(self, state_dim, action_num, atom_num=10):
        super(QNet, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num * atom_num)
        self.action_num = action_num
        self.atom_num = atom_num

    def forward(self, state, state2):
        state = t.cat([state, state2], dim=1)
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        return t.softmax(self.fc3(a)
                         .view(-1, self.action_num, self.atom_num),
                         dim=-1)

### DDPG Actor
class Actor(nn.Module):
def __init__(self, state_dim, action_dim, action_range):
    super(Actor, self).__init__()

    self.fc1 = nn.Linear(state_dim, 16)
    self.fc2 = nn.Linear(16, 16)
    self.fc3 = nn.Linear(16, action_dim)
    self.action_range = action_range

def forward(self, state):
    a = t.relu(self.fc1(state))
    a = t.relu(self.fc2(a))
    a = t.tanh(self.fc3(a)) * self.action_range
    return a

### DDPG ActorDiscrete
class ActorDiscrete(nn.Module):
    def __init__(self, state_dim, action_dim):
        # action_dim means action_num here
        super(ActorDiscrete, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_dim)

    def forward(self, state):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        a = t.softmax(self.fc3(a), dim=1)
        return a

### DDPG Critic, SAC Critic
class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super(Critic, self).__init__()

        self.fc1 = nn.Linear(state_dim + action_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, state, action):
        state_action = t.cat([state, action], 1)
        q = t.relu(self.fc1(state_action))
        q = t.relu(self.fc2(q))
        q = self.fc3(q)
        return q

### A2C Actor, SAC Actor
class Actor(nn.Module):
    def __init__(self, state_dim, action_num):
        super(Actor, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, state, action=None):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        probs = t.softmax(self.fc3(a), dim=1)
        dist = Categorical(probs=probs)
        act = (action
               if action is not None
               else dist.sample())
        act_entropy = dist.entropy()
        act_log_prob = dist.log_prob(act.flatten())
        return act, act_log_prob, act_entropy

### A2C ActorContiguous
class ActorContiguous(nn.Module):
    def __init__(self, state_dim, action_dim, action_range):
        super(Actor, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.mu_head = nn.Linear(16, action_dim)
        self.sigma_head = nn.Linear(16, action_dim)
        self.action_range = action_range

    def forward(self, state, action=None):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        mu = self.mu_head(a)
        sigma = softplus(self.sigma_head(a))
        dist = Normal(mu, sigma)
        act = (action
               if action is not None
               else dist.sample())
        act_entropy = dist.entropy()

        # If your distribution is different from "Normal" then you may either:
        # 1. deduce the remapping function for your distribution and clamping
        #    function such as tanh
        # 2. clamp you action, but please take care:
        #    1. do not clamp actions before calculating their log probability,
        #       because the log probability of clamped actions might will be
        #       extremely small, and will cause nan
        #    2. do not clamp actions after sampling and before storing them in
        #       the replay buffer, because during update, log probability will
        #       be re-evaluated they might also be extremely small, and network
        #       will "nan". (might happen in PPO, not in SAC because there is
        #       no re-evaluation)
        # Only clamp actions sent to the environment, this is equivalent to
        # change the action reward distribution, will not cause "nan", but
        # this makes your training environment further differ from you real
        # environment.

        # the suggested way to confine your actions within a valid range
        # is not clamping, but remapping the distribution
        # from the SAC essay:   https://arxiv.org/abs/1801.01290
        act_log_prob = dist.log_prob(act)
        act_tanh = t.tanh(act)
        act = act_tanh * self.action_range

        # the distribution remapping process used in the original essay.
        act_log_prob -= t.log(self.action_range *
                              (1 - act_tanh.pow(2)) +
                              1e-6)
        act_log_prob = act_log_prob.sum(1, keepdim=True)

        return act, act_log_prob, act_entropy

### A2C Critic
class Critic(nn.Module):
    def __init__(self, state_dim):
        super(Critic, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, state):
        v = t.relu(self.fc1(state))
        v = t.relu(self.fc2(v))
        v = self.fc3(v)
        return v
"""

# Two of the examples stand under two families each, and are quoted once.
quoted = re.findall(r"^### ([^\n]+)\n(.+?)(?=^###|\Z)", MACHIN, re.M | re.S)
quotes = {name: text for names, text in quoted for name in names.split(", ")}
# The continuous actor of SAC is that of A2C without most of its comments, and with rsample.
short = re.sub(
    r" +# If.*?(?= +# the sug)", "", quotes["A2C ActorContiguous"], flags=re.S
)
short = re.sub(r" +# from the SAC essay[^\n]*\n", "", short)
quotes["SAC ActorContiguous"] = short.replace("dist.sample()", "dist.rsample()")


def build(text, *sizes):
    """Run the text of a class, and make a model of it."""
    names = {"t": t, "nn": nn, "softplus": softplus}
    names |= {"Categorical": Categorical, "Normal": Normal}
    exec(text, names)
    torch.manual_seed(0)
    return names[re.match(r"class (\w+)", text)[1]](*sizes)


torch.manual_seed(0)
four, box = torch.randn(5, 4), spaces.Box(-2, 2, (2,))
one, two = {"state": four}, {"state": four, "state2": four}
yes_or_no = spaces.Discrete(2)
CASES = {
    "DQN QNet": ((4, 2), two, yes_or_no),
    "dueling QNet": ((4, 2), {"some_state": four}, yes_or_no),
    "RAINBOW QNet": ((4, 2), two, yes_or_no),
    "DDPG Actor": ((4, 2, 2.0), one, box),
    "DDPG ActorDiscrete": ((4, 2), one, yes_or_no),
    "DDPG Critic": ((4, 2), one, box),
    "A2C Actor": ((4, 2), one, yes_or_no),
    "A2C ActorContiguous": ((4, 2, 2.0), one, box),
    "A2C Critic": ((4,), one, yes_or_no),
    "SAC Actor": ((4, 2), one, yes_or_no),
    "SAC ActorContiguous": ((4, 2, 2.0), one, box),
    "SAC Critic": ((4, 2), one, box),
}


def verdict_on(family, space, states=one, **models):
    """Return what the checker says, without its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_model(family, **models, states=states, action_space=space)
    except ContractError as error:
        return str(error)
    return "passes"


def look_at(name, text=None):
    """Return what the checker says about an example."""
    sizes, states, space = CASES[name]
    family, title = name.replace("dueling", "Dueling").split()
    part = {"Q": "qnet", "A": "actor", "C": "critic"}[title[0]]
    try:
        model = build(text or quotes[name], *sizes)
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition(" (<")[0]
    return verdict_on(family, space, states, **{part: model})


def edited(name, pairs):
    """Return the text of an example after some replacements."""
    text = quotes[name]
    for written, meant in pairs.items():
        assert written in text
        text = text.replace(written, meant)
    return text


verdicts = {name: look_at(name) for name in CASES}
for name, words in verdicts.items():
    print(name, "→", words)

# %% [markdown]
# Five of the twelve pass. Of the other seven, two have a first layer of the wrong size, one is not indented, and two
# return $(B,)$ where the contract says $(B, 1)$: the model that {doc}`contracts` began with. The
# **continuous actors of A2C and SAC** call `super(Actor, self)` in a class of another name. With that corrected, the
# checker finds three broken rules in each.

# %%
continuous = ["A2C ActorContiguous", "SAC ActorContiguous"]
plain = {name: edited(name, {"super(Actor, self)": "super()"}) for name in continuous}
print(look_at("A2C ActorContiguous", plain["A2C ActorContiguous"]))

# %% [markdown]
# The first is a missing sum over the entropies of the action's numbers. The other two come from a single
# mistake, the most instructive one on the page. The actor returns $a = h \tanh u$. When $a$ comes
# back to be judged, `act = action` treats it as $u$ and squashes it once more. The
# log-probability is then that of another action. In PPO the old and the new log-probability are wrong in the same way,
# so the ratio starts at 1 and nothing looks suspicious. But the mean score is not zero.
#
# Here is everything that has to change, as pairs of what is written and what should be.

# %%
both_states = {"nn.Linear(state_dim, 16)": "nn.Linear(2 * state_dim, 16)"}
one_column = {
    "dist.sample()": "dist.sample().unsqueeze(1)",
    "dist.log_prob(act.flatten())": "dist.log_prob(act.flatten()).unsqueeze(1)",
    "dist.entropy()": "dist.entropy().unsqueeze(1)",
}
squash_once = {
    "super(Actor, self)": "super()",
    "dist.entropy()": "dist.entropy().sum(1, keepdim=True)",
    # A given action is turned back into u, and returned as it is.
    "act = (action\n": "u = (t.atanh(action / self.action_range)\n",
    "dist.log_prob(act)": "dist.log_prob(u)",
    "t.tanh(act)": "t.tanh(u)",
    "return act,": "return act if action is None else action,",
}
changes = {
    "DQN QNet": both_states,
    "RAINBOW QNet": both_states,
    "DDPG Actor": {"\n": "\n    "},
    "A2C Actor": one_column,
    "A2C ActorContiguous": squash_once,
    "SAC Actor": one_column | {"act_entropy\n": "act_entropy, probs.log()\n"},
    "SAC ActorContiguous": squash_once,
}
print([look_at(name, edited(name, pairs)) for name, pairs in changes.items()])

# %% [markdown]
# All pass, but the continuous actors get a warning: their entropy is that of the Gaussian before
# the squash. `SquashedGaussianActor` does not have this fault.

# %% tags=["claims"]
from literate_rl.check.contracts import scores_cancel
from literate_rl.check.probes import Probe, try_rules
from literate_rl.check.rules import entropy_fits

passing = {name for name, words in verdicts.items() if words == "passes"}
critics = ["DDPG Critic", "A2C Critic", "SAC Critic"]
assert passing == {"dueling QNet", "DDPG ActorDiscrete", *critics}
assert all("4x16" in verdicts[name] for name in ("DQN QNet", "RAINBOW QNet"))
assert verdicts["DDPG Actor"].startswith("IndentationError")
assert verdicts["A2C Actor"].count("must have shape") == 3
assert "tuple of 4" in verdicts["SAC Actor"]
for name, text in plain.items():
    assert verdicts[name].startswith(("NameError", "TypeError"))
    assert "3 broken rules" in look_at(name, text)
    probe = Probe(build(text, 4, 2, 2.0), one, box, "action=None")
    assert [*try_rules(probe, [[scores_cancel]])], "the mean score is not zero"
    model = build(edited(name, squash_once), 4, 2, 2.0)
    probe = Probe(model, one, box, "action=None")
    assert [*try_rules(probe, [[entropy_fits]])], "a warning"
assert all(look_at(name, edited(name, changes[name])) == "passes" for name in changes)

# %% [markdown]
# ## Traps
#
# ### Trap: an inverse that is cut off
#
# The natural fix for that actor is `u = atanh(a / h)`. Because this is infinite at the edge,
# programs put `clamp(a / h, -1 + 1e-6, 1 - 1e-6)` in front of it, [as RLlib
# did](/docs/errata.md#an-inverse-that-is-cut-off). The clamp limits $|u|$ to about 7.25.
# If a policy has learned to push with full force, its $u$ lies beyond that, and its actions get
# the wrong log-probability.

# %%
mu, log_sigma, one = torch.tensor([[8.0]]), torch.tensor([[-1.0]]), torch.ones(1)
cut_off = torch.atanh(torch.tensor([[1 - 1e-6]]))
undone = SquashedGaussianActor(4, [-1.0], [1.0]).box.undo(mu.tanh())
for name, u in (("cut off", cut_off), ("this chapter's", undone), ("as drawn", mu)):
    log_prob = squashed_log_prob(u, mu, log_sigma, one).item()
    print(f"{name}: u = {u.item():.2f}, log-probability {log_prob:.2f}")

# %% tags=["claims"]
assert abs(cut_off.item() - 7.25) < 0.01
truth, ours, wrong = (
    squashed_log_prob(u, mu, log_sigma, one).item() for u in (mu, undone, cut_off)
)
assert abs(ours - truth) < 0.5 < 2 < truth - wrong

# %% [markdown]
# **Notice** that a small error remains. Near the edge only a few digits of a float32 action
# depend on $u$, and for $u$ above 9.01 none does. SAC never inverts anything.
#
# ## Summary
#
# - A squashed Gaussian needs its Jacobian, in the form with `softplus`.
# - An action that comes back is turned back into $u$, with care near the edges, and returned as it
#   is.
# - The entropy of a squashed Gaussian is estimated from a sample. That of the Gaussian before the
#   squash is a different number.
# - The other roles take a few lines each. What goes wrong in them are shapes and dimensions.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A Gaussian with mean 0 is squashed to the box from −1 to 1. Its standard deviation grows "
    "from 0.1 to 5. What does the entropy of the action do?",
    ["it grows without limit", "it grows, then it falls", "it falls"],
    right="it grows, then it falls",
    because="A narrow Gaussian gives almost one action. A very wide one gives almost two: nearly all "
    "actions lie at one of the two edges. In between the actions fill the box. No density in "
    "the box has an entropy above that of the uniform one, log 2 = 0.69. The entropy of the "
    "Gaussian before the squash does grow without limit.",
)

# %% tags=["claims"]


def entropy_of(sigma):
    """Integrate the entropy of the squashed Gaussian over its actions."""
    u = torch.linspace(-18, 18, 20_001, dtype=torch.float64).unsqueeze(-1)
    density, _ = densities(u, sigma, 0.0)
    return torch.trapezoid(torch.special.entr(density), u.tanh().squeeze(-1)).item()


entropies = [entropy_of(sigma) for sigma in (0.1, 0.9, 5.0)]
assert max(entropies[0], entropies[2]) < entropies[1] < math.log(2)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This actor draws numbers from 0 to 3. Every shape is right, and actions that come back are
# judged as when they were drawn. The checker finds one broken rule, and once that is fixed it
# may warn of another number. Fix it.


# %%
class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.box = Stretch([0.0], [3.0])

    def forward(self, state, action=None):
        mu, log_sigma = self.net(state).clamp(-5, 2).chunk(2, -1)
        u = mu + log_sigma.exp() * torch.randn_like(mu)
        entropy = -squashed_log_prob(u, mu, log_sigma, torch.ones(1))
        u = u if action is None else self.box.undo(action)
        log_prob = squashed_log_prob(u, mu, log_sigma, torch.ones(1))
        action = self.box(u) if action is None else action
        return action, log_prob.unsqueeze(-1), entropy.unsqueeze(-1)


from literate_rl.book.exercises import grade

to_three = spaces.Box(0, 3, (1,))


def said_of(family, space):
    """Return the first complaint about three fresh models, a warning included."""
    for seed in range(3):
        torch.manual_seed(seed)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                check_model(
                    family, actor=Answer(), states={"state": four}, action_space=space
                )
            except ContractError as error:
                return str(error)
        if told:
            return str(told[0].message)
    return "passes"


grade(lambda: said_of("PPO", to_three), lambda: "passes", ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.box = Stretch([0.0], [3.0])

    def forward(self, state, action=None):
        mu, log_sigma = self.net(state).clamp(-5, 2).chunk(2, -1)
        # The box is 3 wide, so half of its width is 1.5, not 1.
        describe = mu, log_sigma, self.box.half_width
        u = mu + log_sigma.exp() * torch.randn_like(mu)
        entropy = -squashed_log_prob(u, *describe)
        u = u if action is None else self.box.undo(action)
        log_prob = squashed_log_prob(u, *describe)
        action = self.box(u) if action is None else action
        return action, log_prob.unsqueeze(-1), entropy.unsqueeze(-1)


grade(lambda: said_of("PPO", to_three), lambda: "passes", ())

# %% [markdown]
# ### Exercise 3: experiment
#
# A Gaussian is not the only way into a box. A **Beta** distribution lives between 0 and 1, so it
# needs no squash and no inverse, and a formula is known for its entropy. Stretch it to a box from
# −2 to 2: the actor below draws in the wrong box. It should pass the contracts of PPO and of SAC.


# %%
from torch.distributions import Beta
from torch.nn.functional import softplus


class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, state, action=None):
        # Above 1, both numbers give a density without a peak at the edges.
        alpha, beta = (1 + softplus(self.net(state))).chunk(2, -1)
        dist = Beta(alpha, beta)
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy()


to_two, both = spaces.Box(-2, 2, (1,)), [("PPO",), ("SAC",)]
grade(lambda x: said_of(x, to_two), lambda x: "passes", *both)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, state, action=None):
        alpha, beta = (1 + softplus(self.net(state))).chunk(2, -1)
        dist = Beta(alpha, beta)
        # The draw has a gradient, for SAC.
        action = 4 * dist.rsample() - 2 if action is None else action
        # Four times as wide: the density is a quarter, the entropy larger by log 4.
        x = ((action + 2) / 4).clamp(1e-6, 1 - 1e-6)
        return action, dist.log_prob(x) - math.log(4), dist.entropy() + math.log(4)


grade(lambda x: said_of(x, to_two), lambda x: "passes", *both)

# %% [markdown]
# ## References
#
# The squashed Gaussian is from {cite:t}`haarnoja2018`, the dueling network from {cite:t}`wang2016`.
# The twelve examples are those of [Machin](https://github.com/iffiX/machin).
