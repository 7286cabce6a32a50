# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # It does not learn
#
# **Why does my agent not learn, and what do I change first?** A bug in reinforcement learning
# seldom raises an error. The agent acts, all numbers are finite, and the curve stays flat. After
# this chapter you can find out in seconds which part of an agent of discrete actions is broken,
# read symptoms from the metrics of a run, and tune the three settings that matter most.
#
# It takes about 23 minutes, reading, without exercises. You need {doc}`ppo`, and the two flags of {doc}`agents`.

# %% tags=["hide-input"]
import math
from dataclasses import replace
from textwrap import fill

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import torch
from gymnasium.wrappers import TimeLimit, TransformReward

from literate_rl.data.agents import make_envs, seed_everything
from literate_rl.runs.evaluation import evaluate
from literate_rl.nets.policies import make_policy
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.maths.ppo_error import policy_error_from_log_prob, ppo_policy_loss
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.book.rooms import ROOMS, House, house, room_answers
from literate_rl.runs.runs import fit, stored_runs

torch.set_num_threads(1)  # the networks are too small for several threads to pay

# %% [markdown]
# ## A house with six rooms
#
# Do not look for a bug where learning takes minutes and nobody knows the right answer. Build a
# world that is learned in a second and whose answers are exact, a **probe environment**
# {cite:p}`jones2021`. Here are six of them as
# rooms of a house. Each episode starts in a room at random. The agent sees in which room it is,
# and the discount is $\gamma = 0.8$.
#
# | room | what happens | exact answer | what it tests |
# |---|---|---|---|
# | pays | it pays 1 and ends | value 1 | the critic's loss, and the end of an episode |
# | reads | it pays 1 or $-1$, as the observation says | values 1 and $-1$ | observations reach the critic |
# | waits | the first step pays 0, the second pays 1 | value $\gamma = 0.8$ | discount and next value |
# | lasts | each step pays 1, until a time limit | value $1 / (1 - \gamma) = 5$ | the two flags |
# | chooses | right pays 1, left 0 | probability 1 of right | the policy's loss |
# | both | the observation says which action pays 1 | probability 1 of that action | an advantage belongs to its observation |
#
# `source` ({doc}`apps/programs`) shows a step in the `House` of {doc}`book/rooms`; "reads", "waits" and "both" have two states:

# %%
from literate_rl.apps.programs import source

source(House.step)

# %% [markdown]
# Seven agents move in. The first is PPO as it is in this book. Each of the others is the same
# with one mistake: in the loss, in the flags, in the next observation, or in the order of a
# column.


# %%
def uphill(*terms):
    """Compute the policy's loss with the wrong sign."""
    (policy_loss, entropy_loss), info = policy_error_from_log_prob(*terms)
    return ppo_policy_loss(-policy_loss, entropy_loss), info


def with_batch(changed):
    """Return a PPO that learns from changed batches."""
    return type("Changed", (PPO,), {"collect": lambda x: changed(PPO.collect(x))})


def flags(end, cut):
    """Return a PPO to which `end` or `cut` of all ends are such ends."""

    def changed(batch):
        done = batch.terminated | batch.truncated
        return batch._replace(terminated=done & end, truncated=done & cut)

    return with_batch(changed)


class Scattered(PPO):
    """Gives each sample the advantage of another one."""

    def look_back(self, batch):
        """Look back, and shuffle one column."""
        samples = super().look_back(batch)
        order = torch.randperm(len(samples.adv), generator=self.generator)
        return samples._replace(adv=samples.adv[order])


one_flag, no_end = flags(end=True, cut=False), flags(end=False, cut=True)
next_is_now = with_batch(lambda batch: batch._replace(next_obs=batch.obs))


# %% tags=["hide-input"]
def build(make, config, learner=PPO, **arguments):
    """Build environments, the policy that fits them, and the learner."""
    seed_everything(config.seed)
    envs = make_envs(make, config.num_envs)
    spaces_of_one = envs.single_observation_space, envs.single_action_space
    policy = make_policy(*spaces_of_one, normalize=config.normalize_obs)
    return learner(policy, envs, config, numpy_act(policy), **arguments)


def train(*task, **arguments):
    """Train an agent; return the learner and its metrics, one array for each."""
    made = build(*task, **arguments)
    rows = fit(made, progress=False)
    return made, {name: np.array([row[name] for row in rows]) for name in rows[0]}


at_home = PPOConfig(
    total_steps=5_120,
    num_envs=8,
    num_steps=32,
    num_epochs=8,
    num_minibatches=1,
    learning_rate=3e-3,
    anneal=False,
    gamma=0.8,
    lambda_=0.8,
    entropy_weight=0.0,
)

# %% tags=["hide-input"] mystnb={"image": {"alt": "A table of seven agents and six rooms with the answer of each. The first agent has all six right. Each of the others is wrong in one to four rooms, which are marked"}}
agents = {
    "as it should be": train(house, at_home),
    "wrong sign of the loss": train(house, at_home, policy_error=uphill),
    "advantages out of order": train(house, at_home, Scattered),
    "critic does not learn": train(house, replace(at_home, value_weight=0.0)),
    "next observation is this one": train(house, at_home, next_is_now),
    "one flag, always terminated": train(house, at_home, one_flag),
    "one flag, never terminated": train(house, at_home, no_end),
}


def answers(policy):
    """Return what an agent of this book says about each room."""
    return room_answers(policy.value, lambda obs: policy(obs).softmax(-1))


EXACT = {room: exact for room, (exact, _) in ROOMS.items()}
said = {name: answers(learner.policy) for name, (learner, _) in agents.items()}
wrong = {
    name: {room for room, exact in EXACT.items() if abs(told[room] - exact) > 0.15}
    for name, told in said.items()
}
fig, axis = plt.subplots(figsize=(7, 3.2))
for row, (name, told) in enumerate(said.items()):
    for column, (room, number) in enumerate(told.items()):
        bad = room in wrong[name]
        if bad:
            axis.barh(row, 0.9, 0.8, left=column - 0.45, color="C1")
        style = {"color": "black", "weight": "bold"} if bad else {}
        words = f"{number:.2f}".replace("-", "−")
        place = {"ha": "center", "va": "center"}
        axis.text(column, row, words, fontsize=9, **place, **style)
heads = [f"{room}\n({exact:g})" for room, exact in EXACT.items()]
axis.set_xticks(range(6), heads, fontsize=9)
axis.set_yticks(range(7), [fill(name, 17) for name in said], fontsize=9)
axis.set(xlim=(-0.6, 5.6), ylim=(6.6, -0.6))
axis.xaxis.tick_top()
axis.tick_params(length=0)
for side in axis.spines.values():
    side.set_visible(False)
fig.tight_layout()

# %% [markdown]
# The exact answer is below the name of each room; marked cells are wrong by more than 0.15. **Notice** that
# most mistakes leave traces of their own: the house says not only *that* something is broken but often
# *what*. And four of the six broken agents choose the right actions: their return is as high as that of the
# first agent, and only their values give them away.
#
# ### How long to wait
#
# A right program that has not trained long enough is wrong in the house as well. So do not look once:
# see whether a wrong answer moves with more training. `visit_rooms` asks after 30 iterations of 256
# steps, and as long as a wrong answer comes nearer again after 60, 120 and 240. Here is a right agent that learns slowly,
# and then one that knows one flag only:

# %%
from literate_rl.book.rooms import visit_rooms


def trainer(learner, learning_rate):
    """Return a function that trains in the house for some iterations."""

    def answer_after(iterations):
        rate = {"learning_rate": learning_rate}
        config = replace(at_home, total_steps=256 * iterations, **rate)
        policy = train(house, config, learner)[0].policy
        return policy.value, lambda obs: policy(obs).softmax(-1)

    return answer_after


_, needed = visit_rooms(trainer(PPO, 1e-4))
print(f"as it should be, slowly: right after {needed} iterations")
try:
    visit_rooms(trainer(one_flag, 1e-3))
except AssertionError as error:
    verdict = str(error)
    print(f"one flag, always terminated: {verdict}")

# %% [markdown]
# What stands still is wrong; what moves needs time. On other tasks wait as long as a right PPO of this
# book needed to get off the ground: on CartPole all twenty stored runs had passed a return of 60 after
# 6,000 steps, on Pendulum all ten had passed $-1000$ after 12,000.
#
# Now send your own program through the house, for instance the PPO of the last exercise of {doc}`ppo`:
# train on `house` with $\gamma = 0.8$, and hand `visit_rooms` a function that trains for a number of
# iterations and returns values and probabilities. Whoever learns action values returns
# `values_and_greedy(q)`. An agent of boxes, such as SAC or TD3, cannot live in the house.

# %% tags=["claims"]
assert 30 < needed <= 240, "wrong at first, and right later"
assert "1 of 6 rooms is wrong" in verdict
assert "lasts" in verdict
easy = stored_runs("cartpole")["PPO"]
assert len(easy.curves) == 20
assert (easy.curves > 60).argmax(1).max() == list(easy.steps).index(6_000)
swings = stored_runs("arc_pendulum")["PPO"]
assert len(swings.curves) == 10
assert (swings.curves > -1000).argmax(1).max() == list(swings.steps).index(12_000)
assert wrong["as it should be"] == set()
assert wrong["wrong sign of the loss"] == {"chooses", "both"}
assert wrong["advantages out of order"] & {"chooses", "both"}
assert not wrong["advantages out of order"] & {"pays", "reads", "waits", "lasts"}
assert wrong["critic does not learn"] == {"pays", "reads", "waits", "lasts"}
assert wrong["next observation is this one"] == {"waits"}
assert wrong["one flag, always terminated"] == {"lasts"}
assert wrong["one flag, never terminated"] == {"pays", "reads", "waits"}
choosing = [name for name in wrong if not wrong[name] & {"chooses", "both"}]
assert len(choosing) == 5, "the healthy agent and four of the six broken ones"
paid = {
    name: metrics["charts/episodic_return"][-10:].mean()
    for name, (_, metrics) in agents.items()
}
for name in choosing:
    assert abs(paid[name] - paid["as it should be"]) < 0.25, "as high"
traces = [sorted(rooms) for name, rooms in wrong.items() if "order" not in name]
assert len({*map(tuple, traces)}) == len(traces), "each its own"
assert all(said["wrong sign of the loss"][room] < 0.1 for room in ("chooses", "both"))

# %% [markdown]
# ## Find your symptom
#
# The house finds mistakes in the code. Others come from the task or the settings, and show in the
# metrics.
#
# | what you see | likely cause | check |
# |---|---|---|
# | [the return falls below that of random actions](#the-return-falls) | wrong sign | does one update make good actions likelier? |
# | [entropy 0 at once, KL divergence and clip fraction huge](#the-entropy-falls-to-zero-at-once) | learning rate too high | KL divergence of the first iterations |
# | [entropy, KL divergence and clip fraction do not move](#the-entropy-falls-to-zero-at-once) | learning rate too low | the same |
# | [the clip never does anything](#the-clip-never-does-anything) | old policy computed anew | are ratios still 1 after the first epoch? |
# | ratios differ from 1 *before* the first update | the policy changed in between | compare both log-probabilities ({doc}`learners/ppo`) |
# | explained variance about 0 | shapes `(B, 1)` and `(B,)` | print the shape of the loss before its mean ({doc}`agents`) |
# | [huge value loss, the policy does not move](#the-value-loss-is-huge) | size of the rewards | the actor's share of the gradient |
# | [explained variance below 0](#the-explained-variance-is-negative) | units of the observations | their standard deviations, saturated units |
# | [a value above the largest possible one](#a-value-is-above-the-largest-possible-one) | discount missing in the target | $r_{\max} / (1 - \gamma)$, or $r_{\max}$ if no step pays |
# | [the loss falls to nothing, and nothing is learned](#returns-lie-beyond-the-atoms) | returns that leave the atoms | the share of the targets beyond them |
# | never does what pays off late | a time limit treated as an end | the room "lasts"; ends that have the limit's length |
# | [training is fine, evaluation is not](#training-is-fine-evaluation-is-not) | greedy actions | evaluate with noise |
# | it had learned, and fell for good | open; {doc}`a2c` has a cure | smaller rewards |
# | it worked yesterday | luck | more seeds ({doc}`evaluation`) |
#
# `literate-rl look runs/…` finds eight of them in the metrics of a run ({doc}`apps/doctor`). The runs on CartPole below are short, 6,144
# steps: enough to see a symptom.

# %% tags=["hide-input"]
settings = replace(ppo_settings("CartPole-v1"), total_steps=6_144, seed=3)
healthy = train("CartPole-v1", settings)
NAMES = {
    "return": "charts/episodic_return",
    "entropy": "losses/entropy",
    "KL divergence": "losses/approx_kl",
    "clip fraction": "losses/clipfrac",
    "value loss": "losses/value_loss",
    "explained variance": "losses/explained_variance",
}


def last(run, panel, number=5):
    """Return the mean of a metric over the last iterations."""
    return np.nanmean(run[1][NAMES[panel]][-number:])


# %% [markdown]
# ### The return falls
#
# **You see** a return below that of random actions, about 20 on CartPole, and an entropy that
# falls all the same: the agent learns eagerly, and learns the wrong thing.
#
# **Cause.** A sign. A loss is *minus* what is wanted; the
# advantage is what was earned minus what was expected.
#
# **Check.** Take one update on one rollout. Afterwards actions with an advantage above the mean
# must be likelier than before.


# %%
def good_actions_gain(learner):
    """Return how much likelier one update makes good actions, weighted by advantage."""
    samples = learner.look_back(learner.collect())
    learner.learn(samples)
    with torch.no_grad():
        log_prob, _ = learner.policy.evaluate_actions(samples.obs, samples.action)
    adv = samples.adv - samples.adv.mean()
    return ((log_prob - samples.log_prob) * adv).mean().item()


usual = good_actions_gain(build("CartPole-v1", settings))
turned = good_actions_gain(build("CartPole-v1", settings, policy_error=uphill))
print(f"as it should be: {usual:+.5f}, wrong sign: {turned:+.5f}")


# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over 6 thousand steps. Return: that of the healthy agent rises to about 200, that of the one with the wrong sign falls to about 9. Entropy: that of the healthy agent falls slowly, that of the other one falls to almost zero"}}
def draw(runs, *panels, log=()):
    """Draw some metrics of several runs, one panel for each metric."""
    fig, axes = plt.subplots(1, len(panels), figsize=(7, 2.1))
    for axis, panel in zip(axes, panels, strict=True):
        for number, (name, (_, metrics)) in enumerate(runs.items()):
            values = metrics[NAMES[panel]]
            if panel == "return":  # a running mean; some iterations end no episode
                known = np.isfinite(values)
                values = np.interp(
                    np.arange(len(values)), np.flatnonzero(known), values[known]
                )
                values = np.convolve(values, np.full(4, 0.25), "valid")
            steps = metrics["step"][len(metrics["step"]) - len(values) :]
            style = ("-", "--", ":")[number]
            axis.plot(steps / 1000, values, style, color=f"C{number}", label=name)
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel("thousand steps", fontsize=9)
        if panel in log:
            axis.set_yscale("symlog", linthresh=1e-3)
            axis.set_yticks(
                [0, 1e-2, 1, 1e2] if panel == "KL divergence" else [0, 1, 1e3, 1e6]
            )
            axis.minorticks_off()
    axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    fig.tight_layout()


another = replace(settings, seed=2)
right_way = train("CartPole-v1", another)
sick = train("CartPole-v1", another, policy_error=uphill)
draw({"as it should be": right_way, "wrong sign": sick}, "return", "entropy")

# %% tags=["claims"]
assert usual > 0 > turned
assert last(sick, "return") < 15 < 30 < last(right_way, "return")
assert last(sick, "entropy") < last(right_way, "entropy")

# %% [markdown]
# ### The entropy falls to zero at once
#
# **You see** that the first iteration already ends with an entropy near 0, a KL divergence far
# above 1 and a clip fraction near 1.
#
# **Cause.** Most likely a learning rate that is far too high. With one that is too low nothing moves: entropy
# at its maximum of $\log 2 = 0.69$ for two actions, KL divergence and clip fraction 0, a flat return.
#
# **Check.** The KL divergence of the first iterations. Around 0.01 is healthy.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels over 6 thousand steps for three learning rates. With 0.3 the entropy is zero from the first iteration, the KL divergence begins above 10 and the clip fraction at 1. With 0.00001 nothing moves: entropy at 0.69, KL divergence and clip fraction at 0. With 0.002 the entropy falls slowly, the KL divergence stays near 0.01 and the clip fraction below a half"}}
rates = {"learning rate 2e-3": healthy}
for rate in (0.3, 1e-5):
    changed = replace(settings, learning_rate=rate)
    rates[f"learning rate {rate:g}"] = train("CartPole-v1", changed)
draw(rates, "entropy", "KL divergence", "clip fraction", log=("KL divergence",))

# %% [markdown]
# **Fix.** Change the learning rate by factors of three until the KL divergence lies between 0.001 and
# 0.05 in the first half of the iterations. If the policy is sure of itself too early although that is
# small, `entropy_weight` holds it back.

# %% tags=["claims"]
healthy_run, high, low = (run[1] for run in rates.values())
assert high["losses/entropy"][0] < 0.1, "near 0 after the first iteration"
assert high["losses/approx_kl"][0] > 5, "far above 1"
assert high["losses/clipfrac"][0] > 0.9, "near 1"
assert low["losses/entropy"].min() > 0.68, "at its maximum"
assert low["losses/approx_kl"].max() < 1e-4, "divergence 0"
assert low["losses/clipfrac"].max() == 0, "clip fraction 0"
assert 15 < last(rates["learning rate 1e-05"], "return") < 30, "as random actions"
half = healthy_run["losses/approx_kl"][: len(healthy_run["step"]) // 2]
assert ((half > 0.001) & (half < 0.05)).mean() > 0.5, "in the first half"

# %% [markdown]
# ### The clip never does anything
#
# **You see** a clip fraction of exactly 0 in every minibatch, and yet the
# policy moves, perhaps too far.
#
# **Cause.** The old log-probabilities were computed anew in the loop, from the
# policy in training. Every ratio is 1, and PPO has become a policy gradient without a clip that
# repeats its rollout.
#
# **Check.** The loss reports a KL divergence of 0 at the first update of an iteration, and must not at
# the later ones.


# %%
def not_old(log_prob, log_prob_old, *others):
    """Take the log-probabilities of the policy in training for the old ones."""
    return policy_error_from_log_prob(log_prob, log_prob.detach(), *others)


def reported(policy_error):
    """Return the KL divergence that the loss reports at each update."""
    seen = []

    def watched(*terms):
        loss, info = policy_error(*terms)
        seen.append(abs(info.approx_kl))
        return loss, info

    build("CartPole-v1", settings, policy_error=watched).iterate()
    return seen


for name, error in {"old": policy_error_from_log_prob, "not old": not_old}.items():
    print(f"{name:8s}", *(f"{x:.5f}" for x in reported(error)[:6]), "…")

# %% [markdown]
# This is worse than no clip at all, with all five stored seeds on CartPole; on Pendulum with four of five,
# a hint. Without the old ones each update pushes with full weight, as if the batch had just been collected.
#
# **Fix.** Compute the old log-probabilities once, before the epochs, without gradient; step 2 of the
# program of {doc}`ppo` does.

# %% tags=["claims"]
kl_of_old = reported(policy_error_from_log_prob)
assert kl_of_old[0] == 0, "the first ratios are 1"
assert max(kl_of_old[1:]) > 1e-4, "the others are not"
assert max(reported(not_old)) == 0, "never"
for task, number in {"cartpole": 5, "pendulum": 4}.items():
    anew = stored_runs(f"anew_{task}")["computed anew"].final
    unclipped = stored_runs(f"ablation_{task}")["no clip"].final
    assert (len(anew), (anew < unclipped).sum()) == (5, number)

# %% [markdown]
# ### The value loss is huge
#
# **You see** a value loss in the millions, and a policy that does not move: KL divergence 0, entropy
# at its maximum. Here CartPole pays 1,000 for each step and not 1.
#
# **Cause.** Values of thousands make the critic's gradient huge. One
# bound clips the gradients of actor and critic *together*, and each number of the actor's part
# becomes far smaller than the $\varepsilon$ of Adam, $10^{-5}$, so that Adam cannot scale it up
# again.
#
# **Check.** The actor's share of the gradient.


# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels over 6 thousand steps. With rewards of 1,000 the value loss is in the millions, the KL divergence is zero and the entropy stays at 0.69. Scaled, the value loss is below one, the KL divergence is near 0.01 and the entropy falls"}}
def rich():
    """Make CartPole with a thousand times its rewards."""
    return TransformReward(gym.make("CartPole-v1"), lambda reward: 1000 * reward)


def actor_share(learner):
    """Return the length of the actor's gradient, relative to that of both."""
    learner.learn(learner.look_back(learner.collect()))
    network = learner.policy.network
    squares = [
        sum(p.grad.square().sum() for p in part.parameters())
        for part in (network.actor, network.critic)
    ]
    return (squares[0] / sum(squares)).sqrt().item()


cure = replace(settings, scale_reward=True)
shares = [actor_share(build(rich, config)) for config in (settings, cure)]
print(f"the actor's share: {shares[0]:.6f}, with scaled rewards {shares[1]:.2f}")
big, scaled = train(rich, settings), train(rich, cure)
runs = {"rewards of 1,000": big, "the same, scaled": scaled}
draw(
    runs, "value loss", "KL divergence", "entropy", log=("value loss", "KL divergence")
)

# %% [markdown]
# **Fix.** `scale_reward=True` divides rewards by the running standard deviation of the return
# ({doc}`policies`). If you know the size, divide by it yourself.

# %% tags=["claims"]
assert shares[0] < 0.001 < 0.01 < shares[1]
weights = sum(p.numel() for p in big[0].policy.network.actor.parameters())
usual_size = settings.max_grad_norm * shares[0] / math.sqrt(weights)
assert usual_size < 0.1 * 1e-5, "far smaller than Adam's epsilon"
assert last(big, "value loss") > 1e6, "in the millions"
assert big[1]["losses/approx_kl"].max() < 1e-3, "divergence 0"
assert big[1]["losses/entropy"].min() > 0.65, "at its maximum"
assert last(scaled, "value loss") < 10

# %% [markdown]
# ### The explained variance is negative
#
# **You see** an explained variance around 0 and often below: the critic's guesses are worse than
# a constant. During the first iterations that is harmless. Here the cart's position and speed come in
# millimetres.
#
# **Cause.** Numbers in the hundreds push most hidden units to $-1$ or 1, where they have no
# slope, and hide what the other observations say.
#
# **Check.** The standard deviation of each observation, and the share of hidden units beyond
# 0.99.


# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over 6 thousand steps. Explained variance: with observations as they are it stays around zero and often below, normalised it rises towards one. Return: as they are it stays below 50, normalised it rises above 100"}}
class Millimetres(gym.ObservationWrapper):
    """CartPole whose position and speed are in thousandths of the usual unit."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, obs):
        """Change the units."""
        return obs * np.array([1000, 1000, 1, 1], np.float32)


@torch.no_grad()
def saturated(learner):
    """Return the share of units beyond 0.99."""
    obs, network = learner.collect().obs.flatten(0, 1), learner.policy.network
    hidden = network.actor[:2](network.normalizer(obs))
    return (hidden.abs() > 0.99).float().mean().item()


raw = train(Millimetres, settings)
normal = train(Millimetres, replace(settings, normalize_obs=True))
beyond = [saturated(learner) for learner, _ in (raw, normal)]
print(f"saturated units: {beyond[0]:.0%}, normalised {beyond[1]:.0%}")
draw({"as they are": raw, "normalised": normal}, "explained variance", "return")

# %% [markdown]
# **Fix.** Set `normalize_obs=True`, which shifts and scales each observation by what was seen so
# far ({doc}`policies`). Or choose units in which the numbers are about 1.

# %% tags=["claims"]
explained = raw[1]["losses/explained_variance"]
assert (explained < 0).mean() > 0.05, "often below 0"
assert explained.mean() < normal[1]["losses/explained_variance"].mean()
assert beyond[0] > max(0.5, 2 * beyond[1]), "most hidden units"

# %% [markdown]
# ### A value is above the largest possible one
#
# **You see** values that rise and rise, in an agent that learns values from values, such as DQN.
#
# **Cause.** Nobody can earn more than the largest reward in each step, forever. So where some step
# pays, $r_{\max} > 0$, no value is above
#
# $$
# V_{\max} = \frac{r_{\max}}{1 - \gamma} ,
# $$ (largest-value)
#
# and where no step pays none is above $r_{\max}$. A mean value far above it feeds on itself: each target
# contains the next value, and the discount is missing. The same
# happens where a target follows too fast; {doc}`dqn` has such a run.
#
# **Check.** Compare the mean value with $V_{\max}$; an error of a tenth is nothing unusual. In the house
# $V_{\max}$ is 5, and a DQN without a discount in its targets soon says more than twice as much.
#
# **Fix.** The target is the reward plus $\gamma$ times the next value, and plus nothing
# where the task ended. If both are there, slow it down: a larger `target_interval`, or a smaller `tau`.

# %% tags=["claims"]
from literate_rl.learners.dqn import DQN, DQNConfig, make_q_policy

short = {"total_steps": 3_200, "learning_starts": 200, "iteration_steps": 400}


def mean_values(forgets):
    """Train DQN in the house; return the mean value of each iteration."""
    slow = {"buffer_size": 2_000, "target_interval": 50, "tau": 1.0}
    config = DQNConfig(**short, **slow, learning_rate=3e-3, gamma=0.8)
    seed_everything(1)
    envs = make_envs(house, config.num_envs)
    spaces_of_one = envs.single_observation_space, envs.single_action_space
    learner = DQN(make_q_policy(*spaces_of_one), envs, config)
    sample, ones = learner.sample, torch.ones(config.batch_size)
    if forgets:  # the discount of each step, which is 0 where an episode terminated
        learner.sample = lambda: sample()._replace(discount=ones)
    return [row["losses/q_value"] for row in fit(learner, progress=False)]


largest = 1 / (1 - at_home.gamma)
assert math.isclose(largest, 5), "in the house"
assert max(mean_values(forgets=False)) < largest
assert mean_values(forgets=True)[-1] > 2 * largest, "more than twice as much"

# %% [markdown]
# ### Returns lie beyond the atoms
#
# **You see** an agent of distributions, such as Rainbow, whose loss falls to nothing and whose values
# stand still, as if it were done. But it has learned nothing.
#
# **Cause.** What lies beyond an end of the atoms counts as the atom there ({doc}`c51`). If all returns
# do, all targets are that one atom, and a network that always says so is right about them.
#
# **Check.** `losses/beyond_atoms` is the share of the targets' probability that lay beyond the ends. It
# should be zero. Above a twentieth `train` warns.
#
# **Fix.** Set `value_min` and `value_max` so that all discounted returns lie in between, times
# `reward_scale` if you have one. Steps that cost 1 and never end are worth $-1 / (1 - \gamma)$.

# %% [markdown]
# ### Training is fine, evaluation is not
#
# **You see** good returns while training and poor ones in the evaluation, from the same policy.
#
# **Cause.** Training draws its actions, and the evaluation takes the likeliest one. Where the
# agent cannot tell two states apart, chance is part of what it has learned. The corridor of
# {cite:t}`sutton2018` (example 13.1) has three cells in a row, a goal
# behind the third, and in the second cell left and right are exchanged. All cells look alike and
# each step costs 1. Evaluate it both ways:


# %% tags=["hide-input"]
class Corridor(gym.Env):
    """Three cells that look alike; in the second one left and right are exchanged."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Begin an episode."""
        super().reset(seed=seed)
        self.cell = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        """Take one step."""
        right = (action == 1) != (self.cell == 1)
        self.cell = max(0, self.cell + (1 if right else -1))
        return np.ones(1, np.float32), -1.0, self.cell == 3, False, {}


def corridor(**_):
    """Make a corridor in which an episode has a hundred steps at most."""
    return TimeLimit(Corridor(), 100)


lost = replace(at_home, gamma=0.99, lambda_=0.95, learning_rate=1e-3)
learner, _ = train(corridor, lost)
as_drawn = evaluate(learner.policy, corridor, 100, greedy=False).mean()
greedy = evaluate(learner.policy, corridor, 5).mean()
print(f"as drawn {as_drawn:.1f}, greedy {greedy:.0f}")

# %% [markdown]
# The likeliest action alone runs to and fro until the limit.
#
# **Fix.** Evaluate as you will use the agent, here with `greedy=False`, and say which of the two a number
# is. If greedy actions are needed, the observation has to tell the states apart.

# %% tags=["claims"]
assert as_drawn > -50 > greedy == -100, "until the limit"

# %% [markdown]
# ## Three settings first
#
# The code is right, and the agent is slow. Now, and not before, it is time to tune. Begin with the three
# settings that decide how far the policy moves and on what evidence, and leave the rest. Those with
# which PPO has learned in this book lie inside this table:
#
# | setting | try | too low | too high |
# |---|---|---|---|
# | learning rate | 1e-3, then by factors of 2 or 3 between 1e-4 and 1e-2 | KL divergence below 0.001, clip fraction 0 | entropy gone at once, clip fraction above a half |
# | rollout, `num_envs` × `num_steps` | 1,024, then doubled or halved between 256 and 8,192 | two rollouts disagree on the direction | few updates; slow at the start |
# | epochs | 4, then up to 10 | rollouts are thrown away half used | KL divergence and clip fraction grow from epoch to epoch |
#
# One setting comes even before: $\gamma$ belongs to the task. If what matters comes $n$ steps
# later, $1 / (1 - \gamma)$ should not be much smaller than $n$.

# %% tags=["claims"]
tasks = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1")
for task in (*tasks, "literate_rl/Moving-v0", "literate_rl/HybridLander-v0"):
    config = ppo_settings(task)
    assert 1e-4 <= config.learning_rate <= 1e-2
    assert 256 <= config.num_envs * config.num_steps <= 8192
    assert 4 <= config.num_epochs <= 10

# %% [markdown]
# ## Summary
#
# - First a world with known answers, then the task. A mistake need not show in the return.
# - What stands still with more training is wrong; what moves needs time.
# - Entropy, KL divergence, clip fraction and explained variance are the four to look at; the first
#   iterations already tell.
# - Tune the learning rate, the rollout and the epochs first, and leave the rest.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "In every iteration the clip fraction is 0, the KL divergence about 0.00001 and the entropy of "
    "two actions 0.69. The six rooms are right. What do you try first?",
    ["a larger clip range", "a larger learning rate", "a larger entropy bonus"],
    right="a larger learning rate",
    because="The policy hardly moves, so no clip holds it and it has not lost its noise. Either "
    "the learning rate is too small or almost nothing of the gradient reaches the actor.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to shift and scale observations, so that each has mean 0 and standard
# deviation 1 over the batch, as `std` computes it. An agent that uses it saturates as before.
# Repair it.


# %%
def answer(obs):
    """Return the observations, shifted and scaled."""
    return (obs - obs.mean()) / obs.std()


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def normalised(obs):
    """Return the observations, shifted and scaled."""
    return (obs - obs.mean(0)) / obs.std(0)


batches = [(torch.tensor([[1000.0, 0.1], [3000.0, 0.3], [2000.0, 0.5]]),)]
grade(answer, normalised, *batches)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(obs):
    """Return the observations, shifted and scaled."""
    # Over the batch, for each observation by itself.
    return (obs - obs.mean(0)) / obs.std(0)


grade(answer, normalised, *batches)

# %% [markdown]
# ## References
#
# Probe environments are from {cite:t}`jones2021`. {cite:t}`henderson2018` show how much seeds and
# details change a result, {cite:t}`huang2022` collect the details of PPO, and
# {cite:t}`andrychowicz2021` measure which settings matter. Time limits: {cite:t}`pardo2018`.
