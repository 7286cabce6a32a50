# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Policies that remember
#
# **What if one observation is not enough?** Then a policy has to keep something of what it saw before.
# After this chapter you can give a policy a GRU or an LSTM, train it with PPO, and name the five places
# where a memory goes wrong silently. It takes about 30 minutes. You need {doc}`policies`, {doc}`ppo` and the
# time limits of {doc}`agents`.

# %% tags=["export", "hide-input"]
"""What remembers: a step of a GRU and of an LSTM, and many steps with ends inside."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from literate_rl.data.agents import Window, without
from literate_rl.ground.signatures import Float, checked
from literate_rl.maths.fast import gru_scan, pieces_of

__all__ = ["Memory", "gru_step", "lstm_step"]

# %% [markdown]
# ## A pole whose speed nobody sees
#
# Hide the two speeds that CartPole shows. An upright pole may be falling to either side, and one observation
# does not say which. Here PPO trains two policies on what is left: one sees the present observation only, the
# other remembers.

# %% tags=["hide-input"] mystnb={"image": {"alt": "The angle of the pole over 200 steps for two policies. Without a memory it swings further and further and falls after a few dozen steps. With one it trembles around zero and stays."}}
import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.apps.training import train
from literate_rl.data.worlds import SelectObservation

torch.set_num_threads(1)  # the networks are too small for several threads to pay


def half_seen():
    """Return CartPole without its speeds."""
    return SelectObservation(gym.make("CartPole-v1"), 0, 2)


settings = {"num_envs": 16, "num_steps": 64, "num_epochs": 6, "num_minibatches": 4}
settings |= {
    "learning_rate": 2e-3,
    "gamma": 0.98,
    "lambda_": 0.9,
    "entropy_weight": 0.0,
}
settings |= {"total_steps": 60_000, "progress": False}


def angles(policy):
    """Return the pole's angles in one greedy episode, in degrees."""
    env, seen = half_seen(), []
    obs, _ = env.reset(seed=5)
    if hasattr(policy, "reset"):
        policy.reset()  # it remembers nothing of an episode before
    while len(seen) < 200:
        seen.append(np.degrees(obs[1]))
        obs, _, fallen, _, _ = env.step(policy.predict(obs))
        if fallen:
            break
    return seen


policies = {
    "one observation": train("PPO", half_seen, **settings).policy,
    "a GRU": train(
        "PPO", half_seen, recurrent="gru", recurrent_size=32, **settings
    ).policy,
}
tracks = {name: angles(policy) for name, policy in policies.items()}
fig, axis = plt.subplots(figsize=(7, 2.2))
for name, track in tracks.items():
    axis.plot(track, label=f"{name}, {len(track)} steps")
axis.set(xlabel="step", ylabel="angle in degrees", ylim=(-14, 14))
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** the growing swing of the first one. It pushes against the lean, and goes on when the pole is already on
# its way back. The second knows where the pole was a moment ago.

# %% tags=["claims"]
from literate_rl.runs.evaluation import evaluate

worth = {name: evaluate(x, half_seen, 20).mean() for name, x in policies.items()}
assert worth["one observation"] < 60, "it falls"
assert worth["a GRU"] > 1.5 * worth["one observation"], "the other one stands longer"

# %% [markdown]
# ## Stack, or remember?
#
# Two observations in a row would nearly do here: how far the pole moved says how fast it was. Handing over the
# last four at once is called *stacking*, and the policy stays what it was
# (`wrappers=["FrameStackObservation(4)"]`). But a sign at the entrance of a building, which is needed at the
# end of a long corridor, is out of its reach.
#
# A policy with a memory reads one observation $o_t$ at a time and keeps a row of $H$ numbers, its **state**
# $h_t$. In the field's words the task is *partially observable*, and $h_t$ has to stand for what $o_t$ does not
# show.
#
# ## One step
#
# A plain network, $h_t = \tanh(W o_t + U h_{t-1} + b)$ with matrices $W$ and $U$, forgets quickly, because every step
# writes the whole state anew. A *gated recurrent unit*, or GRU {cite:p}`cho2014`, can also leave a number as it is.
# The candidate $\tilde h_t$ is what would be written, and two gates between 0 and 1 decide, for each number, how much
# of the state the candidate sees and how much of it is kept.
# With $x_t = W o_t$ and its bias, split in three parts,
#
# $$
# \begin{aligned}
# g^{\text{see}}_t &= \sigma(x^{\text{see}}_t + U^{\text{see}} h_{t-1} + b^{\text{see}}), \\
# g^{\text{keep}}_t &= \sigma(x^{\text{keep}}_t + U^{\text{keep}} h_{t-1} + b^{\text{keep}}), \\
# \tilde h_t &= \tanh\!\big(x^{\text{new}}_t + g^{\text{see}}_t (U^{\text{new}} h_{t-1} + b^{\text{new}})\big), \\
# h_t &= (1 - g^{\text{keep}}_t)\, \tilde h_t + g^{\text{keep}}_t\, h_{t-1} .
# \end{aligned}
# $$ (gru)
#
# Here $\sigma$ is the sigmoid, and gates multiply number by number. Elsewhere they are called reset and update gate.


# %% tags=["export"]
@checked
def gru_step(
    inputs: Float[Tensor, "*B 3*H"],
    state: Float[Tensor, "*B H"],
    weight: Float[Tensor, "3*H H"],
    bias: Float[Tensor, "3*H"],
) -> Float[Tensor, "*B H"]:
    """Return the next state of a GRU.

    Args:
        inputs: What the observation adds to the gates that see and keep, and to the
            candidate.
        state: The state so far.
        weight: Matrix of the state, for the same three.
        bias: What is added to them.

    Source: Cho et al. 2014, with the reset gate of PyTorch and cuDNN.
    """
    from_obs = inputs.chunk(3, -1)
    from_state = nn.functional.linear(state, weight, bias).chunk(3, -1)
    # How much of the state the candidate sees, and how much of it is kept, {eq}`gru`.
    see = (from_obs[0] + from_state[0]).sigmoid()
    keep = (from_obs[1] + from_state[1]).sigmoid()
    candidate = (from_obs[2] + see * from_state[2]).tanh()
    return candidate + keep * (state - candidate)


# %% [markdown]
# The *long short-term memory*, or LSTM {cite:p}`hochreiter1997`, is older and keeps a second row, the cell $c_t$.
# The network after it sees $h_t$ only. Gates say what enters the cell, what is kept in it and what of it is shown,
#
# $$
# \begin{aligned}
# c_t &= g^{\text{keep}}_t\, c_{t-1} + g^{\text{enter}}_t \tanh(x^{\text{new}}_t + U^{\text{new}} h_{t-1} + b^{\text{new}}), \\
# h_t &= g^{\text{show}}_t \tanh(c_t) ,
# \end{aligned}
# $$ (lstm)
#
# and each of the three, usually called forget, input and output gate, is a sigmoid of its own $x_t + U h_{t-1} + b$.
# The state of an LSTM is $h_t$ and $c_t$, side by side.


# %% tags=["export"]
@checked
def lstm_step(
    inputs: Float[Tensor, "*B 4*H"],
    state: Float[Tensor, "*B 2*H"],
    weight: Float[Tensor, "4*H H"],
    bias: Float[Tensor, "4*H"],
) -> Float[Tensor, "*B 2*H"]:
    """Return the next state of an LSTM: its output, and behind it its cell.

    Args:
        inputs: What the observation adds to the gates that enter and keep, to the
            candidate and to the gate that shows.
        state: The state so far.
        weight: Matrix of the output so far, for the same four.
        bias: What is added to them.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """
    output, cell = state.chunk(2, -1)
    gates = inputs + nn.functional.linear(output, weight, bias)
    enter, keep, candidate, show = gates.chunk(4, -1)
    # What is kept and what enters, and then what is shown, {eq}`lstm`.
    cell = keep.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return torch.cat([show.sigmoid() * cell.tanh(), cell], -1)


# %% [markdown]
# ## How long does a state remember?
#
# A GRU with random weights reads noise, twice: only the first observation differs. The curve says how different
# the two states still are, and the first observation is known while that is above a hundredth of its largest.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Axis, Mark, dial, plot

rng = torch.Generator().manual_seed(1)
noise = torch.randn(40, 1, 3, generator=rng)
other = noise.clone()
other[0] += 1.0
enter, recur = (torch.randn(96, n, generator=rng) / n**0.5 for n in (3, 32))


def difference(keep, end):
    """Return how far apart the states of two pasts are, over 40 steps."""
    bias, rows = torch.zeros(96), []
    bias[32:64] = keep
    for obs in (noise, other):
        state, states = torch.zeros(1, 32), []
        for t, now in enumerate(obs):
            state = without(state, torch.tensor([t == end]))
            state = gru_step(now @ enter.t(), state, recur, bias)
            states.append(state)
        rows.append(torch.cat(states))
    return (rows[0] - rows[1]).norm(dim=-1).clamp_min(1e-4)


def frame(keep, end):
    gap = difference(keep, end)
    still = int((gap > 0.01 * gap.max()).sum())
    drawn = plot(
        "What is left of the first observation",
        "Difference of two states whose first observations differ, over 40 steps.",
        Axis("step", 0, 40, ticks=(0, 10, 20, 30)),
        Axis("difference", -4, 1, ticks={-2: ".01", 0: "1"}),
        Mark("line thick", list(range(40)), gap.log10().tolist(), "accent"),
    )
    return [drawn], f"the first observation is known for {still} steps"


biases, ends = [-2.0, -1.0, 0.0, 1.0, 2.0], [10, 20, 30, 40]
dial(
    "How far back a state knows",
    frame,
    {"bias of the gate that keeps": biases, "the episode ends after step": ends},
    start=(0.0, 40),
)

# %% [markdown]
# **Notice** how much one bias does: with −2 the first observation is gone after a few steps, with 2 it
# is there for all forty. The price: what is kept well is also written slowly. And the end of an
# episode wipes the state to the last bit, whatever the bias.

# %% tags=["claims"]
known = {
    x: int((difference(x, 40) > 0.01 * difference(x, 40).max()).sum()) for x in biases
}
assert known[-2.0] < 10, "a few steps"
assert known[2.0] == 40, "all forty"
assert difference(2.0, 40)[0] < 0.5 * difference(-2.0, 40)[0], "written slowly"
assert all((difference(x, 10)[10:] == 1e-4).all() for x in biases), "to the last bit"

# %% [markdown]
# ## Many steps
#
# A learner reads a whole rollout again, as a `Window` ({doc}`data/agents`): observations `obs`, the states with which
# they begin, and flags `over`, which say that an episode ended right before a step. `loop` is the plain way: wipe
# the state where an episode is over, then take one step. `forward` gives the same outputs sooner
# ({doc}`maths/fast`): each episode's piece becomes a sequence of its own, and all are read side by side.


# %% tags=["export"]
class Memory(nn.Module):
    """A GRU or an LSTM behind an encoder; it reads a ``Window``.

    Args:
        front: What observations go through first.
        features: Number of features that come out of it.
        size: Number of its outputs H.
        kind: ``"gru"`` or ``"lstm"``.

    Attributes:
        state_size: Numbers of its state, of which the first H are its output.
    """

    def __init__(
        self, front: Sequence[nn.Module], features: int, size: int, kind: str
    ) -> None:
        super().__init__()
        self.front, self.size = nn.Sequential(*front), size
        self.gru = kind == "gru"
        self.cells = (nn.GRU if self.gru else nn.LSTM)(features, size)
        self.state_size = size if self.gru else 2 * size
        for name, weight in self.cells.named_parameters():
            init = nn.init.zeros_ if "bias" in name else nn.init.orthogonal_
            init(weight)
            # A memory begins by keeping: the bias of that gate is 1.
            if name == "bias_ih_l0":
                nn.init.ones_(weight.data[size : 2 * size])

    def step(self, features: Tensor, state: Tensor) -> Tensor:
        """Return the states after a step, ``(*B, S)``."""
        enter, recur, enter_bias, bias = self.cells.parameters()
        advance = gru_step if self.gru else lstm_step
        inputs = nn.functional.linear(features, enter, enter_bias)
        return advance(inputs, state, recur, bias)

    def loop(self, seen: Window) -> Tensor:
        """Return the states after all steps, ``(T, B, S)``."""
        features = self.front(seen.obs)
        if not isinstance(seen.over, Tensor):  # each step stands alone
            return self.step(features, seen.state)
        # The gradient {eq}`through-time` comes back through this chain.
        state, states = seen.state[0], []
        for row, over in zip(features, seen.over, strict=True):
            state = self.step(row, without(state, over))
            states.append(state)
        return torch.stack(states)

    def states(self, seen: Window) -> Tensor:
        """Return the same, sooner if it can be had: a GRU's output is its state."""
        quick = self.gru and isinstance(seen.over, Tensor)
        return self(seen._replace(real=())) if quick else self.loop(seen)

    def forward(self, seen: Window) -> Tensor:
        """Return the outputs after the steps that count, by default ``(T, B, H)``."""
        if not isinstance(seen.over, Tensor):
            return self.loop(seen)[..., : self.size]
        features, (since, piece) = self.front(seen.obs), pieces_of(seen.over)
        length, pieces = int(since.max()) + 1, int(piece.max()) + 1
        sequences = features.new_zeros(length, pieces, features.shape[-1])
        sequences[since, piece] = features
        # The first pieces go on from what is known, all others from nothing.
        start = features.new_zeros(1, pieces, self.state_size)
        start[0, piece[0]] = without(seen.state[0], seen.over[0])
        outputs = self.read(sequences, start)[since, piece]
        return outputs[seen.real] if isinstance(seen.real, Tensor) else outputs

    def read(self, sequences: Tensor, start: Tensor) -> Tensor:
        """Return the outputs of sequences ``(L, N, F)`` that begin with some states."""
        if self.gru and sequences.device.type == "cpu":
            enter, recur, enter_bias, bias = self.cells.parameters()
            inputs = nn.functional.linear(sequences, enter, enter_bias)
            return gru_scan(inputs, start[0], recur, bias)
        known = tuple(x.contiguous() for x in start.split(self.size, -1))
        outputs, _ = self.cells(sequences, known[0] if self.gru else known)
        return outputs


# %% [markdown]
# ## Learning through time
#
# What happens at step $t$ depends on the weights $\theta$ through the states up to there,
#
# $$
# \frac{\mathrm d L}{\mathrm d \theta} = \sum_t \frac{\partial L}{\partial h_t} \sum_{k = t_0}^{t}
# \Big( \prod_{j = k + 1}^{t} \frac{\partial h_j}{\partial h_{j - 1}} \Big) \frac{\partial h_k}{\partial \theta} ,
# $$ (through-time)
#
# where $\partial h_k / \partial \theta$ is that of one step alone. This is *backpropagation through time*. A long product
# of factors below 1 is nearly zero, so gates that keep matter for learning too. One of factors above 1 grows, so the
# norm of the gradient is clipped.
#
# The inner sum begins at $t_0$, the first step of the episode or of the rollout, whichever comes later: the state there is
# a row of stored numbers. So the sign and its use must lie in one rollout, and `num_steps` should be longer than the
# time between them.
#
# ## Five places to get it wrong
#
# None of them raises an error, and slips like these have been published ({doc}`/docs/errata`).
#
# 1. **At an end** wipe the state, whether the episode terminated or was cut off: while the policy acts, and
#    when the learner reads the rollout.
# 2. **At the start of a rollout** the state goes on: a learner that begins with zeros trains another policy than
#    the one that acted. So the rollout keeps its first state.
# 3. **After the last step**, at a time limit or at the end of the rollout, the value of the true successor is read
#    from the state *after* that step.
# 4. **In a minibatch** time must stay whole. Shuffle environments, not steps.
# 5. **When you play**, forget before each new episode: `agent.reset()`.
#
# The `Collector` keeps and wipes the state while the policy acts, and a `Window` does it for the learner. A policy that
# remembers has three methods more, `start`, `step` and `states` ({doc}`nets/recurrent`). PPO, A2C, A3C, IMPALA and
# PPG train it with no other change.
#
# ## Recurrent PPO on one page
#
# Actor and critic share one GRU here. In a corridor a sign says where to turn at its end, ten steps or more later.

# %% tags=["program"] total_steps=60000
import torch
from torch import nn
from torch.distributions import Categorical

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.worlds import TMaze  # noqa: F401 (the corridor, registered)
from literate_rl.maths.advantages import gae

torch.set_num_threads(1)  # the networks are too small to be shared out
env_id, seed, total_steps = "literate_rl/TMaze-v0", 1, 30_000
num_envs, num_steps, num_epochs, num_minibatches = 16, 64, 4, 4
gamma, lambda_, clip_ratio, entropy_weight = 0.98, 0.9, 0.2, 0.01
learning_rate, max_grad_norm, size = 3e-3, 0.5, 32

envs = make_envs(env_id, num_envs)
torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
memory = nn.GRUCell(envs.single_observation_space.shape[0], size)
actor, critic = nn.Linear(size, int(envs.single_action_space.n)), nn.Linear(size, 1)
with torch.no_grad():
    memory.bias_ih[size : 2 * size] = 1.0  # it begins by keeping
networks = nn.ModuleList([memory, actor, critic])
optimizer = torch.optim.Adam(networks.parameters(), learning_rate, eps=1e-5)
# The collector keeps the state, and wipes it where an episode ends.
collector = Collector(envs, start=lambda copies: torch.zeros(copies, size))
collector.reset(seed=1000 * seed)


def act(obs, state):
    """Take a step of the memory and sample an action from what it says."""
    state = memory(obs, state)
    prob = actor(state).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1), state


def read(obs, state, over):
    """Return the states after all steps of a rollout."""
    states = []
    for now, ended in zip(obs, over, strict=True):
        state = memory(now, state.masked_fill(ended.unsqueeze(-1), 0.0))
        states.append(state)
    return torch.stack(states)


episodes, next_report = [], total_steps // 8
while collector.step < total_steps:
    # 1. Act. Each rollout knows with which state it began.
    batch = collector.collect(act, num_steps)
    ended = batch.terminated | batch.truncated
    # What ended with the step before is over. The collector has seen to the first row.
    over = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])
    with torch.no_grad():
        # 2. Probabilities and values of the old policy, also after each step.
        states = read(batch.obs, batch.state[0], over)
        old = Categorical(logits=actor(states)).log_prob(batch.action)
        value = critic(states)[..., 0]
        after = memory(batch.next_obs.flatten(0, 1), states.flatten(0, 1))
        next_value = critic(after).view_as(value)
        ends = batch.terminated, batch.truncated
        adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
        target = adv + value
    for _ in range(num_epochs):
        # 3. A minibatch is a few environments, whole in time.
        order = torch.randperm(num_envs, generator=generator)
        for some in order.tensor_split(num_minibatches):
            states = read(batch.obs[:, some], batch.state[0, some], over[:, some])
            policy = Categorical(logits=actor(states))
            ratio = (policy.log_prob(batch.action[:, some]) - old[:, some]).exp()
            part = adv[:, some]
            part = (part - part.mean()) / (part.std(correction=0) + 1e-8)
            clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
            loss = -torch.min(ratio * part, clipped * part).mean()
            error = (critic(states)[..., 0] - target[:, some]).square().mean()
            loss = loss + 0.25 * error - entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(networks.parameters(), max_grad_norm)
            optimizer.step()

    # Write down the episodes that ended, and report now and then.
    episodes += [(collector.step, x) for x in batch.episode_return[ended].tolist()]
    if collector.step >= next_report:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:7,}: {sum(recent) / max(len(recent), 1):6.2f}")
        next_report += total_steps // 8

# %% [markdown]
# **Take this program:** `literate-rl copy recurrent > my_recurrent.py`. The package has a memory each for actor and
# critic, `agent = train("PPO", "literate_rl/TMaze-v0", recurrent="gru")`, or `--recurrent gru` on the
# command line. `agent.predict` then keeps the state from call to call.
#
# ## Does it pay?
#
# Four kinds of policies, ten seeds each, with the same settings on each task: one observation, four stacked ones,
# a GRU and an LSTM with 32 outputs.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels. Mean return over steps on CartPole and on Pendulum without speeds, for four kinds of policies; four stacked observations are far ahead, then come the memories. Then how many of ten seeds solve a corridor of 5, 10 and 20 steps: most with a memory in the two shorter ones, none without."}}
from literate_rl.runs.evaluation import paired_difference
from literate_rl.runs.runs import stored_runs

fig, axes = plt.subplots(1, 3, figsize=(7, 2.5))
for axis, task in zip(axes, ("CartPole", "Pendulum"), strict=False):
    for kind, runs in stored_runs(f"recurrent_{task.lower()}").items():
        axis.plot(runs.steps / 1000, runs.curves.mean(0), label=kind)
    axis.set(xlabel="thousand steps")
    axis.set_title(f"{task} without speeds", fontsize=9)
axes[0].set(ylabel="return while training")
mazes = {length: stored_runs(f"recurrent_tmaze_{length}") for length in (5, 10, 20)}
solved = {  # where the last policy does better than a guess
    kind: [int((maze[kind].final > 0.5).sum()) for maze in mazes.values()]
    for kind in mazes[5]
}
for kind in ("one observation", "four stacked", "GRU", "LSTM"):
    axes[2].plot(list(mazes), solved[kind], "o-", label=kind)
axes[2].set(xlabel="steps of the corridor", ylim=(-0.5, 10.5), xticks=list(mazes))
axes[2].set_title("corridors: seeds solved", fontsize=9)
axes[2].legend(fontsize=6, loc=(0.02, 0.1))
fig.tight_layout()

# %% [markdown]
# **Notice** who wins where. Without speeds both tasks are out of reach for one observation, and four stacked ones do
# best: the last few say all. sb3-contrib's recurrent PPO, with an LSTM of the same size, ends on CartPole where ours
# does, after about five times the seconds of CPU time ({doc}`/docs/results`).
#
# The corridors turn this round. No policy without a memory solves one with any seed. Those of five and of ten steps
# are solved with all ten seeds by a GRU, and with all but one by an LSTM, that of twenty with five seeds by a GRU
# and with none by an LSTM. Where the bias of the gate that keeps starts at 0 and not at 1, the LSTM never solves the
# corridor of ten steps.

# %% tags=["claims"]
ends = {kind: runs.final for kind, runs in stored_runs("recurrent_cartpole").items()}
peer = stored_runs("recurrent_cartpole_peer")["sb3-contrib"]
assert all(len(x) == 10 for x in (*ends.values(), peer.final)), "ten seeds"
assert ends["one observation"].max() < 50, "out of reach"
memories = {kind: ends[kind] for kind in ("GRU", "LSTM")}
assert all(
    paired_difference(ends["four stacked"], x).low > 50 for x in memories.values()
)
assert all(x.min() > 100 and x.mean() < 400 for x in memories.values()), "not as far"
gap = paired_difference(memories["LSTM"], peer.final)
assert gap.low < 0 < gap.high, "ends where ours does"
cpu = stored_runs("recurrent_cartpole")["LSTM"].cpu_seconds
assert 4 < peer.cpu_seconds.mean() / cpu.mean() < 7, "about five times"
for task, ratios in (("cartpole", [3, 2]), ("pendulum", [5, 2])):
    costs = {
        x: y.cpu_seconds.mean() for x, y in stored_runs(f"recurrent_{task}").items()
    }
    found = [round(costs[x] / costs["one observation"]) for x in ("GRU", "LSTM")]
    assert found == ratios, "what it costs"
swings = {x: y.final for x, y in stored_runs("recurrent_pendulum").items()}
assert swings["one observation"].max() < -1000, "out of reach"
assert swings["four stacked"].min() > -300, "best"
for x in ("GRU", "LSTM"):
    assert -850 < swings[x].min() < swings[x].max() < -350, "between the two"
assert solved["one observation"] == solved["four stacked"] == [0, 0, 0]
assert (solved["GRU"], solved["LSTM"]) == ([10, 10, 5], [10, 9, 0])
assert (solved["GRU, bias 0"][1], solved["LSTM, bias 0"][1]) == (8, 0)

# %% [markdown]
# ## When to use it
#
# Ask first what is missing from one observation. If the last few have it, stack them.
#
# - **Use it for**: what was seen long ago, or at a time that nobody knows
# - **Rather than**: four stacked observations, which do where the last few say all
# - **Costs**: a GRU three to five times, an LSTM about twice the seconds of CPU time
# - **First settings**: `recurrent`, `recurrent_size`, `num_steps`
# - **Decided by**: [ten seeds on five tasks](#does-it-pay)
#
# ## Summary
#
# - A memory keeps a state from step to step, and gates decide what stays in it.
# - The state is wiped at both kinds of end and goes on from rollout to rollout.
# - Learning reads sequences, whole in time. The gradient goes back to the start of a rollout, and no further.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A learner wipes the state at terminated only. On Pendulum every episode is cut off after 200 steps, "
    "and none terminates. What does its policy learn from?",
    [
        "from states that still hold the episodes before",
        "from states that are wiped too often",
        "from the right states",
    ],
    right="from states that still hold the episodes before",
    because="Nothing ever terminates, so nothing is ever wiped. When the agent is evaluated, its first "
    "state is empty, as it hardly ever was in training.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This memory halves its state and adds what it sees. `ended[t]` says that an episode ended *with* step $t$, and the
# next state should forget it. Repair the function.


# %%
def answer(obs, ended):
    state, states = 0.0, []
    for seen, over in zip(obs, ended, strict=True):
        state = 0.5 * (0.0 if over else state) + seen
        states.append(state)
    return states


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def right(obs, ended):
    states = []
    for t, seen in enumerate(obs):
        before = states[-1] if t and not ended[t - 1] else 0.0
        states.append(0.5 * before + seen)
    return states


cases = [
    ([1.0, 2.0, 4.0], [False, False, False]),
    ([1.0, 2.0, 4.0, 8.0], [False, True, False, False]),
    ([1.0, 1.0, 1.0], [True, False, True]),
]
grade(answer, right, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(obs, ended):
    state, states = 0.0, []
    for seen, over in zip(obs, ended, strict=True):
        state = 0.5 * state + seen
        states.append(state)
        # The step that ends an episode still belongs to it. The next one does not.
        state = 0.0 if over else state
    return states


grade(answer, right, *cases)

# %% [markdown]
# ### Exercise 3: from nothing
#
# Write {eq}`gru` for a state of one number. `x` holds the three parts of $x_t$, in the order see, keep, new;
# `u` and `b` the three weights and biases of the state; `h` is $h_{t-1}$.


# %%
def answer(x, h, u, b):
    return ...


# %% tags=["hide-input"]
def one_number(x, h, u, b):
    x, u, b = (torch.tensor(v, dtype=torch.float64) for v in (x, u, b))
    return gru_step(x, torch.tensor([h], dtype=torch.float64), u.unsqueeze(1), b).item()


cases = [
    ([0.0, 0.0, 1.0], 0.5, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ([-2.0, 3.0, 1.0], -0.3, [1.0, 0.5, 2.0], [0.1, 0.0, -0.5]),
    ([2.0, -3.0, 0.5], 0.9, [0.3, -1.0, 1.5], [0.0, 0.2, 0.7]),
]
grade(answer, one_number, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
from math import exp, tanh


def answer(x, h, u, b):
    see, keep = (1 / (1 + exp(-(x[i] + u[i] * h + b[i]))) for i in (0, 1))
    new = tanh(x[2] + see * (u[2] * h + b[2]))
    return (1 - keep) * new + keep * h


grade(answer, one_number, *cases)

# %% [markdown]
# ## References
#
# The LSTM is by {cite:t}`hochreiter1997`, the GRU by {cite:t}`cho2014`, the corridor by {cite:t}`bakker2001`.
# {cite:t}`kapturowski2019` looked at the first states of windows from a replay buffer.
