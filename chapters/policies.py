# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Policies
#
# **How can one training loop serve every kind of action?** It never looks inside an action. It
# asks the policy what to do, how likely that was, and how much was left to chance. After this
# chapter you can write an action distribution of your own, and train discrete and continuous actions
# with the same loop.
#
# It takes about 30 minutes. You need the rollouts of {doc}`agents` and
# the advantages of {doc}`advantages`.

# %% tags=["export", "hide-input"]
"""Parts of a policy: action distributions, actor and critic, running moments."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor, nn

from literate_rl.ground.nests import open_ended
from literate_rl.ground.networks import (
    UNIT_ENTROPY,
    chosen,
    expected,
    mean_surprise,
    normal_log_prob,
    orthogonal,
    race_noise,
)
from literate_rl.data.agents import Rollout
from literate_rl.ground.protocols import PolicyLike
from literate_rl.ground.signatures import (
    Bool,
    Float,
    Int,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.scan import reverse_scan
from literate_rl.nets.masking import legal

__all__ = [
    "ActorCritic",
    "CategoricalActions",
    "GaussianActions",
    "RewardScaler",
    "RunningMoments",
]

# %% [markdown]
# ## A race
#
# In the programs so far `torch.multinomial` drew the actions, with random numbers that we never
# saw. Better draw these numbers first: then a run has the same ones on every device, and leaving
# them out gives the greedy action. How do random numbers become an action?
#
# A network gives three actions a, b and c their logits, and softmax turns them into
# probabilities. Let the actions race. Each runs a track of random length, at a speed equal to its
# probability, and the first to arrive is the action taken. The slider changes how likely c is.

# %% tags=["hide-input"]
import torch

from literate_rl.book.pictures import Axis, Mark, dial, plot

torch.set_num_threads(1)  # the networks are too small for several threads to pay
names = {0: "a", 1: "b", 2: "c"}
tracks = torch.empty(20_000, 3).exponential_(generator=torch.Generator().manual_seed(4))
thirds = [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]


def probabilities(third):
    """Return the softmax of three logits, of which the last one can be turned."""
    return torch.tensor([0.5, 0.0, third]).softmax(-1)


def race(third):
    prob = probabilities(third)
    arrival = tracks / prob
    first, winners = arrival[:12], arrival.argmin(-1)
    wins = torch.bincount(winners, minlength=3) / len(tracks)
    lap, winner = first[7].clamp(max=7.9).tolist(), int(winners[7])
    runners = [Mark("line thick", [0, lap[k]], [2 - k, 2 - k], "quiet") for k in names]
    one = plot(
        "One race",
        "Three runners on their tracks. The one that arrives first is marked.",
        Axis("time of arrival", 0, 8, ticks=(0, 2, 4, 6, 8)),
        Axis("action", -0.6, 2.6, ticks={2 - k: name for k, name in names.items()}),
        *runners,
        Mark("line thick", [0, lap[winner]], [2 - winner, 2 - winner], "accent"),
        width=320,
    )
    many = plot(
        "20,000 races",
        "Shares of the races that each action has won, beside its probability.",
        Axis("action", -0.6, 2.6, ticks=names),
        Axis("share of races won", 0, 1, ticks=(0, 0.5, 1)),
        Mark("bars", list(names), wins.tolist(), "accent"),
        *(Mark("line thick", [k - 0.3, k + 0.3], [prob[k].item()] * 2) for k in names),
        width=320,
    )
    readout = [
        f"{words}: " + ", ".join(f"{name} {x[k]:.1%}" for k, name in names.items())
        for words, x in (("races won", wins), ("probabilities", prob))
    ]
    return [one, many], "\n".join([*readout, f"{names[winner]} wins the left race"])


dial("A race draws an action", race, {"logit of c": thirds}, start=(0.0,))

# %% [markdown]
# **Notice** that the shares of races won end almost exactly at the short lines, the probabilities. In
# the first picture the tracks stay the same, and only the speeds change: with the same luck, an action
# wins as soon as it is likely enough. So an action is a plain *function*, of what the network says and of
# noise that was drawn before.

# %% tags=["claims"]
for third in thirds:
    prob = probabilities(third)
    wins = torch.bincount((tracks / prob).argmin(-1), minlength=3) / len(tracks)
    assert (wins - prob).abs().max() < 0.015, "shares are probabilities"
winner = [int((tracks[7] / probabilities(third)).argmin()) for third in thirds]
assert winner[-1] == 2 != winner[0], "it wins once it is likely enough"

# %% [markdown]
# ## Actions as functions of noise
#
# Only the **action distribution** knows what an action is. The network gives it a *row* of
# numbers for each state, and it says what the row means:
#
# | name | what it is | discrete | Gaussian |
# |---|---|---|---|
# | a row | what describes the policy at a state | $N$ logits | $A$ means and $A$ numbers $\log \sigma$ |
# | `noise(T, B, generator)` | the randomness of a rollout | $N$ numbers a step | $A$ numbers a step |
# | `choose(row, noise)` | the action | an integer | $A$ numbers |
# | `evaluate(row, action)` | log-probability of the action, and entropy | two numbers | two numbers |
# | `to_env(action)` | the action as the environment wants it | the same | stretched to the box |
# | `kl(row, other)` | how far apart two policies are; for {doc}`ppg` | a number | a number |
# | `legal(row, mask)` | the row without what is not allowed; for {doc}`masks` | the logits left | none |
#
# Here $N$ is the number of actions to choose from and $A$ how many numbers a continuous action
# has. For a Gaussian policy with means $\mu_j$ and standard deviations $\sigma_j$ the function of
# noise is well known. With $\eta_j \sim \mathcal N(0, 1)$,
#
# $$
# a_j = \mu_j + \sigma_j \, \eta_j .
# $$ (act-gaussian)
#
# For a discrete policy it is the race. Each action gets a track of random length $\tau_j$, from
# the exponential distribution with mean 1, and runs at the speed $p_j$. It arrives after $\tau_j
# / p_j$, an exponential time with the rate $p_j$, and of such times the one with the rate $p_j$
# is the first with probability $p_j / \sum_i p_i = p_j$. The first to arrive has the largest $\log p_j -
# \log \tau_j$, and logits are as good as log-probabilities, because they differ by the same number
# for all actions. So with $\eta_j = -\log \tau_j$, whose distribution is named after Gumbel,
#
# $$
# a = \operatorname*{argmax}_j \; (z_j + \eta_j) .
# $$ (act-discrete)
#
# In both cases $\eta = 0$ gives the likeliest action: to act greedily is to act without noise. What
# several action distributions share, such as the draw of $\eta$, is in {doc}`ground/networks`.


# %% tags=["export"]
class CategoricalActions:
    """One of N actions; a row holds their logits.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        return race_noise(generator, num_steps, num_envs, self.num_actions)

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out what is illegal."""
        return legal(row, mask)

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Int[Tensor, "*B"]:
        """Return the actions that follow from logits and noise."""
        # The winner of the race, {eq}`act-discrete`.
        return (row + noise).argmax(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B N"], action: Int[Tensor, "*B"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies, in nats."""
        log_prob = row.log_softmax(-1)
        return chosen(log_prob, action), mean_surprise(log_prob)

    @checked
    def kl(
        self, row: Float[Tensor, "*B N"], other: Float[Tensor, "*B N"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        log_prob = row.log_softmax(-1)
        difference = log_prob - other.log_softmax(-1)
        return expected(log_prob.exp(), difference).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        return action.numpy() + self.start


# %% [markdown]
# For continuous actions the log-probability is the logarithm of a *density*, $-\sum_j \bigl(
# \tfrac12 (a_j - \mu_j)^2 / \sigma_j^2 + \log \sigma_j + \tfrac12 \log 2\pi \bigr)$. A density
# may exceed 1, so its logarithm may be positive, and the entropy negative.
#
# Gaussian actions are measured in units in which the environment's box is $[-1, 1]$, and their noise may
# lead out of it. What lies outside is clipped, but *only on the way into the environment*:
# [a trap](#trap-the-action-that-was-clipped) shows why.


# %% tags=["export"]
class GaussianActions:
    """Numbers in a box; a row holds their means and logarithms of standard deviations.

    Args:
        low: Lower bounds of the box, or minus infinity.
        high: Upper bounds, or infinity.
        dtype: Dtype of the environment's actions.
    """

    def __init__(
        self, low: ArrayLike, high: ArrayLike, dtype: DTypeLike = "float32"
    ) -> None:
        self.low = np.atleast_1d(np.asarray(low, dtype))
        self.high = np.atleast_1d(np.asarray(high, dtype))
        # What -1 and 1 mean. Where there is no bound, nothing is stretched.
        first, last = open_ended(self.low), open_ended(self.high)
        bounded = np.isfinite(first) & np.isfinite(last)
        first, last = np.where(bounded, [first, last], [[-1.0], [1.0]])
        self.middle, self.half_width = (last + first) / 2, (last - first) / 2

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        return torch.randn(num_steps, num_envs, self.low.size, generator=generator)

    @checked
    def choose(
        self, row: Float[Tensor, "*B 2*A"], noise: Float[Tensor, "*B A"] | float
    ) -> Float[Tensor, "*B A"]:
        """Return the actions that follow from rows and noise."""
        # Mean plus standard deviation times noise, {eq}`act-gaussian`.
        mu, log_sigma = row.chunk(2, -1)
        return mu + log_sigma.exp() * noise

    @checked
    def log_prob(
        self, row: Float[Tensor, "*B 2*A"], action: Float[Tensor, "*B A"]
    ) -> Float[Tensor, "*B"]:
        """Return the log-densities of actions."""
        # The density of the whole action is a product, so its logarithm is a sum.
        return normal_log_prob(action, *row.chunk(2, -1)).sum(-1)

    @checked
    def entropy(self, row: Float[Tensor, "*B 2*A"]) -> Float[Tensor, "*B"]:
        """Return the entropies of the policy, in nats; they may be negative."""
        _, log_sigma = row.chunk(2, -1)
        return (log_sigma + UNIT_ENTROPY).sum(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B 2*A"], action: Float[Tensor, "*B A"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-densities and entropies."""
        return self.log_prob(row, action), self.entropy(row)

    @checked
    def kl(
        self, row: Float[Tensor, "*B 2*A"], other: Float[Tensor, "*B 2*A"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        mu, log_sigma = row.chunk(2, -1)
        other_mu, other_log_sigma = other.chunk(2, -1)
        # The means have moved by so many standard deviations, and these have changed.
        shift = (mu - other_mu) * (-other_log_sigma).exp()
        change = log_sigma - other_log_sigma
        square = (2 * change).exp() + shift.square()
        return (0.5 * (square - 1) - change).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.floating]:
        """Stretch actions from -1..1 to the box, and clip what lies outside."""
        stretched = self.middle + self.half_width * action.numpy()
        return stretched.clip(self.low, self.high).astype(self.low.dtype)


# %% [markdown]
# ## Actor and critic
#
# Actor and critic have two hidden layers each, with tanh, as in {doc}`ppo`. Their weights start orthogonal
# and are multiplied by a *gain*. That of the actor's last layer is near zero, so that all actions are about
# equally likely at first. For continuous actions {cite:t}`andrychowicz2021` found that this matters a great
# deal.


# %% tags=["export"]
def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Build two hidden layers with tanh; ``gain`` scales the last layer's weights."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    last = nn.Linear(hidden, outputs)
    hidden_layers = orthogonal(first), nn.Tanh(), orthogonal(second), nn.Tanh()
    return nn.Sequential(*hidden_layers, orthogonal(last, gain))


class ActorCritic(nn.Module):
    """Two networks side by side: ``actor`` for the rows, ``critic`` for the values.

    The critic's values have a last dimension of 1. Both networks see the observations
    through ``normalizer``.
    """

    def __init__(
        self, actor: nn.Module, critic: nn.Module, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.normalizer = normalizer or nn.Identity()
        self.actor, self.critic = actor, critic

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows of observations."""
        return self.actor(self.normalizer(obs))

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        return self.critic(self.normalizer(obs)).squeeze(-1)


# %% [markdown]
# For continuous actions the network gives the means. The standard deviations are parameters of
# their own, the same in every state.


# %% tags=["export"]
class WithDeviations(nn.Module):
    """A network for A means, and a standard deviation for each, in every state."""

    def __init__(self, mean: nn.Module, size: int) -> None:
        super().__init__()
        self.mean = mean
        self.log_sigma = nn.Parameter(torch.zeros(size))

    def forward(self, obs: Tensor) -> Tensor:
        """Return means and logarithms of the standard deviations, side by side."""
        mu = self.mean(obs)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)


# %% [markdown]
# ## A policy is a network and an action distribution
#
# `Policy` puts the two together. It acts in one line: the network makes a row, what is not allowed leaves it,
# and the distribution chooses.

# %% tags=["hide-input"]
from literate_rl.apps.programs import source
from literate_rl.nets.policies import Policy

source(Policy.act)

# %% [markdown]
# In {doc}`nets/policies`, `make_policy` builds it from the two spaces of an environment, and the `Runner` of
# {doc}`data/agents` lets it act for a rollout at a time. Several choices in one step are rows side by side, and their
# log-probabilities add up: {doc}`choices`.
#
# ## One learner, two kinds of action
#
# Here is a small learner: one update for each rollout, as in {doc}`a2c`, with Adam and with advantages
# scaled as in {doc}`ppo`. It trains on CartPole, where the cart is pushed to the left or to the right, and
# on the same cart with a push of any strength ({doc}`data/worlds`). Look for a line that knows which one it
# is. `flat_env` makes each of them as a run does ({doc}`runs/runs`).

# %% tags=["hide-input"]
from functools import partial

import matplotlib.pyplot as plt

from literate_rl.data.agents import Runner, make_envs, seed_everything
from literate_rl.data.worlds import make_force_cart_pole
from literate_rl.maths.advantages import gae
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env


# %%
def train(env, total_steps=60_000, num_envs=8, num_steps=32):
    seed_everything(1)
    envs = make_envs(partial(flat_env, env), num_envs)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    runner = Runner(policy, envs, num_steps, seed=1, checkpoint_interval=1000)
    ended = []
    while runner.step < total_steps:
        # 1. Act for some steps with the policy as it is.
        batch = runner.collect()

        # 2. Look back: values and advantages.
        with torch.no_grad():
            value, next_value = policy.value(batch.obs), policy.value(batch.next_obs)
        ends = batch.terminated, batch.truncated
        adv = gae(batch.reward, value, next_value, *ends, gamma=0.98, lambda_=0.9)

        # 3. One update: actions that were better than expected become more likely.
        log_prob, _ = policy.evaluate_actions(batch.obs, batch.action)
        policy_loss = -(log_prob * (adv - adv.mean()) / adv.std()).mean()
        value_loss = (adv + value - policy.value(batch.obs)).square().mean()
        optimizer.zero_grad()
        (policy_loss + 0.25 * value_loss).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        over = ~batch.episode_return.isnan()
        ended += [(runner.step, x) for x in batch.episode_return[over].tolist()]
    return policy, np.array(ended).T


kinds = {"left or right": "CartPole-v1", "any strength": make_force_cart_pole}
trained = {name: train(env) for name, env in kinds.items()}

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two restless curves of the mean return of 50 episodes over 60,000 steps, one for each kind of action. Both climb from about 20 to more than 150 at their best, with setbacks"}}
fig, axis = plt.subplots(figsize=(7, 2.6))
for name, (_, (step, ended)) in trained.items():
    mean = np.convolve(ended, np.full(50, 1 / 50), "valid")
    axis.plot(step[49:], mean, label=name)
    first, last = ended[:50].mean(), ended[-50:].mean()
    print(f"{name}: the first 50 episodes {first:.0f}, the last 50 {last:.0f}")
axis.set(xlabel="steps", ylabel="return")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that both learn, with the same code: from about twenty steps an episode they climb to several
# times as many at their best. It is one seed each, a demonstration and no comparison.

# %% tags=["claims"]
for _, (_, ended) in trained.values():
    assert 15 < ended[:50].mean() < 30, "about twenty steps an episode"
    later = np.convolve(ended, np.full(50, 1 / 50), "valid")
    assert later.max() > 3 * ended[:50].mean(), "several times as many"

# %% [markdown]
# ## Normalisation
#
# Networks often learn better from numbers around 1, though not always
# ({doc}`ppo_evidence`). So with `normalize_obs=True` an agent of vectors keeps the mean and the variance of
# what it has seen so far. If $n$ items with mean $\bar m$ and variance $v$ were seen, and $n'$ new
# ones come in with $\bar m'$ and $v'$, then all of them have
#
# $$
# \begin{aligned}
# \bar m'' &= \bar m + \frac{n'}{n + n'}\,(\bar m' - \bar m) , \\
# v'' &= \frac{n v + n' v'}{n + n'} + \frac{n\, n'}{(n + n')^2}\,(\bar m' - \bar m)^2 .
# \end{aligned}
# $$ (pooled-moments)
#
# The two terms of $v''$ are the variance within the two groups and that between their means
# {cite:p}`chan1983`.


# %% tags=["export"]
class RunningMoments(nn.Module):
    """Mean and variance of everything that has been seen so far.

    Args:
        shape: Shape of one item.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    @checked
    def update(self, items: Float[Tensor, "n ..."]) -> None:
        """Take in items."""
        self.check_shape(items)
        items = items.reshape(-1, *self.mean.shape).double()
        # Two groups are put together by {eq}`pooled-moments`.
        count, mean, var = len(items), items.mean(0), items.var(0, unbiased=False)
        check_finite(mean + var, items=items)
        total = self.count + count
        between = (mean - self.mean).square() * self.count * count / total
        self.var.copy_((self.var * self.count + var * count + between) / total)
        self.mean.add_((mean - self.mean) * count / total)
        self.count.copy_(total)

    def forward(self, items: Tensor) -> Tensor:
        """Return items with mean 0 and standard deviation 1, clipped to -10..10."""
        self.check_shape(items)
        scale = (self.var + 1e-8).rsqrt()
        # Bytes and other integers become floats.
        dtype = items.dtype if items.is_floating_point() else torch.float32
        return ((items - self.mean) * scale).to(dtype).clamp(-10.0, 10.0)

    def check_shape(self, items: Tensor) -> None:
        """Raise unless items have the shape of the moments."""
        wanted, given = self.mean.shape, items.shape
        fits = given[len(given) - len(wanted) :] == wanted
        check_that(fits, f"items must end in {tuple(wanted)}, got {tuple(given)}")


# %% [markdown]
# `RunningMoments` is the first layer of all networks of a policy, and is saved with the weights. On-policy
# agents let it take in a step after learning from it, because earlier it would move the policy that acted;
# those with a memory before.


# %% tags=["export", "hide-input"]
def normalizer_of(policy: PolicyLike, wanted: bool) -> RunningMoments | None:
    """Return what normalises a policy's observations, or None.

    Raises:
        ValueError: If the policy does not do what is wanted.
    """
    # What happens within a model of one's own is its own matter.
    own = "models" in getattr(policy, "recipe", ("", {}))[1]
    parts = policy.modules() if isinstance(policy, nn.Module) and not own else ()
    found = next((x for x in parts if isinstance(x, RunningMoments)), None)
    words = f"policy must normalise as normalize_obs says: {wanted}"
    check_that(wanted == (found is not None), words)
    return found


def take_in(normalizer: RunningMoments | None, obs: Tensor, real: Tensor) -> None:
    """Let a normaliser, if there is one, take in the observations of real steps."""
    if normalizer is None or not real.any():
        return
    # Pictures may come flat.
    seen = obs[real].reshape(-1, *normalizer.mean.shape)
    normalizer.update(seen.to(normalizer.mean.device, torch.float32))


# %% [markdown]
# Rewards are only *scaled*. Shifting them would change the task:
# where each step costs something, the agent wants a short episode, and after the shift it might
# want a long one. The scale is the standard deviation of the discounted sum of the episode's
# rewards so far, which is about as large as a return:
#
# $$
# R_t = r_t + \gamma \, (1 - \mathrm{done}_{t-1}) \, R_{t-1} ,
# \qquad \tilde r_t = r_t \,/ \operatorname{std}(R) .
# $$ (reward-scale)


# %% tags=["export"]
class RewardScaler(nn.Module):
    """Divides rewards by the standard deviation of the discounted return.

    The mean is not subtracted: that would pay for a longer or a shorter life.

    Args:
        num_envs: Number of environments B.
        gamma: Discount.
    """

    carry: Tensor

    def __init__(self, num_envs: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments()
        self.register_buffer("carry", torch.zeros(num_envs))

    @checked
    def forward(
        self,
        reward: Float[Tensor, "T B"],
        done: Bool[Tensor, "T B"],
        real: Bool[Tensor, "T B"],
    ) -> Float[Tensor, "T B"]:
        """Take in the rewards of a rollout's real steps; return all of them scaled."""
        # The sum {eq}`reward-scale` runs forward in time. Turned around it is the scan
        # of {doc}`/chapters/advantages`.
        increment = reward.clone()
        increment[0] += self.carry
        factor = torch.full_like(reward, self.gamma)
        factor[1:].masked_fill_(done[:-1], 0.0)
        so_far = reverse_scan(increment.flip(0), factor.flip(0)).flip(0)
        check_finite(so_far, reward=reward)

        # What goes on in the next rollout, and what the scale is measured from.
        self.carry.copy_(self.gamma * so_far[-1].masked_fill(done[-1], 0.0))
        if real.any():
            self.moments.update(so_far[real])
        return reward / (self.moments.var + 1e-8).sqrt().to(reward.dtype)

    def scaled(self, batch: Rollout) -> Rollout:
        """Return a rollout with scaled rewards."""
        done = batch.terminated | batch.truncated
        return batch._replace(reward=self(batch.reward, done, batch.real))


# %% [markdown]
# ## Traps
#
# ### Trap: the action that was clipped
#
# The box says $[-1, 1]$, the policy drew 3.5, the environment got 1. Which action goes into the
# batch? If it is the clipped one, the gradient is about an action that the policy never drew: a
# policy with mean 3 finds 1 unlikely, and a good return pulls it back.

# %%
mu = torch.tensor([3.0], requires_grad=True)
moves = []
for name, stored in (("as drawn, 3.5", 3.5), ("clipped, 1.0", 1.0)):
    log_prob = torch.distributions.Normal(mu, 1.0).log_prob(torch.tensor(stored))
    moves.append(torch.autograd.grad(log_prob.sum(), mu)[0].item())
    print(f"{name}: a good return moves the mean by {moves[-1]:+.1f}")

# %% [markdown]
# So the batch keeps the action as drawn.

# %% tags=["claims"]
assert moves == [0.5, -2.0]

# %% [markdown]
# ## Summary
#
# - A policy is a network and an action distribution. The network makes a row of numbers, the
#   action distribution knows what the row means.
# - An action is a function of a row and of noise.
# - A race draws from a softmax: the largest logit plus Gumbel noise wins.
# - A learner sees log-probabilities, entropies and values only, so one learner serves all kinds
#   of action.
# - What is clipped on the way into the environment is not clipped in memory.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A Gaussian policy of one number doubles its standard deviation. Its mean was 0.3. What happens to "
    "its entropy?",
    ["it doubles", "it grows by 0.69 nats", "it depends on the mean"],
    right="it grows by 0.69 nats",
    because="The entropy is the logarithm of the standard deviation plus a constant, so it grows "
    "by ln 2. The mean only says where the policy looks, not how widely.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This log-density of a Gaussian policy is right before training, when every standard deviation is
# 1. As soon as they change, it is wrong. Repair it.

# %%
import math


def answer(mu, log_sigma, action):
    distance = (action - mu) / log_sigma.exp()
    return -(0.5 * distance.square() + 0.5 * math.log(2 * math.pi)).sum(-1)


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def by_pytorch(mu, log_sigma, action):
    return torch.distributions.Normal(mu, log_sigma.exp()).log_prob(action).sum(-1)


rows = torch.randn(3, 3, 5, 2, generator=torch.Generator().manual_seed(2))
grade(answer, by_pytorch, *rows.unbind())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(mu, log_sigma, action):
    # A wider bell is a lower one: the area below it stays 1.
    distance = (action - mu) / log_sigma.exp()
    constant = 0.5 * math.log(2 * math.pi)
    return -(0.5 * distance.square() + log_sigma + constant).sum(-1)


grade(answer, by_pytorch, *rows.unbind())

# %% [markdown]
# ### Exercise 3: from nothing
#
# Write an action distribution that PPO could use. A Laplace distribution has a sharper peak than a
# Gaussian one and longer tails. Its density is
# $e^{-|a - \mu| / \beta} / (2 \beta)$ and its entropy $1 + \ln 2 \beta$; its noise is the difference of
# two exponential times. A row holds means and logarithms of
# $\beta$, so `choose` and `to_env` can stay those of `GaussianActions`.


# %%
def answer(low, high):
    return GaussianActions(low, high)


# %% tags=["hide-input"]
from gymnasium import spaces


def fits_by_samples():
    """Put a network and the actions together, draw, and compare with PyTorch's."""
    box = spaces.Box(-2, 2, (3,))
    network = make_policy(spaces.Box(-1, 1, (4,)), box).network
    policy = Policy(network, answer(box.low, box.high))
    with torch.no_grad():
        obs = torch.zeros(5_000, 8, 4)
        noise = policy.noise(5_000, 8, torch.Generator().manual_seed(1))
        action = policy.act(obs, noise)
        log_prob, entropy = policy.evaluate_actions(obs, action)
    wanted = torch.distributions.Laplace(0.0, 1.0).log_prob(action).sum(-1)
    right = torch.allclose(log_prob, wanted, atol=1e-4)
    return [right, abs((log_prob + entropy).mean().item()) < 0.1]


grade(fits_by_samples, lambda: [True, True], ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
class LaplaceActions(GaussianActions):
    def noise(self, num_steps, num_envs, generator):
        times = torch.empty(2, num_steps, num_envs, self.low.size)
        first, second = times.exponential_(generator=generator)
        return first - second

    def log_prob(self, row, action):
        mu, log_beta = row.chunk(2, -1)
        distance = (action - mu).abs() * (-log_beta).exp()
        return -(distance + log_beta + math.log(2)).sum(-1)

    def entropy(self, row):
        _, log_beta = row.chunk(2, -1)
        return (1 + math.log(2) + log_beta).sum(-1)


def answer(low, high):
    # `evaluate` calls the two functions above. PPO and A2C act so, with
    # `Policy(network, LaplaceActions(…))`. PPG would need `kl` too: the one that is
    # inherited is a Gaussian's.
    return LaplaceActions(low, high)


grade(fits_by_samples, lambda: [True, True], ())

# %% [markdown]
# ## References
#
# The race is known as the Gumbel-max trick {cite:p}`maddison2014`.
