# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One row for each algorithm
#
# **How does `train` learn of an algorithm, and how does it learn of yours?** The module of an
# algorithm ends with a row that says all there is to know of it: its settings, its policy, what
# trains it. `train`, the command line, `load` and the help read these rows. An algorithm of your own
# is one file that ends with such a row.
#
# Nobody has to read this page to follow the book.

# %% tags=["export", "hide-input"]
"""Rows: what the package knows of an algorithm, written beside the algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, cast

from literate_rl.ground.nests import is_hybrid
from literate_rl.ground.protocols import Learner, PolicyLike, RunConfig
from literate_rl.ground.signatures import check_that, checked

__all__ = ["Row", "by_settings", "register"]

# %% [markdown]
# ## A row
#
# The fast forms of acting and learning stand above the algorithms, so a row names only the slots
# that its learner has for them, and `train` fills these ({doc}`/chapters/apps/training`).


# %% tags=["export"]
# DI-engine's names, which IMPALA's settings had: they still work, and warn.
ONCE = {"unroll_len": "num_steps", "n_sample": "num_envs", "discount_factor": "gamma"}
ANY, LISTED, BOUNDED = "all kinds", "Discrete", "Discrete, Box"
Slot = Literal["act", "act_in_list", "error", "by_hand"]


@checked
@dataclass(frozen=True)
class Row:
    """What there is to know of an algorithm.

    Attributes:
        name: Its name for ``train``.
        purpose: What it is for, in a few words.
        actions: The kinds of actions that it takes: ``ANY``, ``LISTED`` or ``BOUNDED``.
        config: Class of its settings, a ``RunConfig``.
        policy: Function from the space of observations, that of actions and settings to
            a policy. An ``encoder`` or a ``mask`` comes by name. See ``by_settings``.
        learner: Function from a policy, environments and settings to a learner, which
            takes fast forms by the names of their slots. None if it is for actors only.
        actors: The same for settings with actors: from a policy, what makes the
            environments of an actor, settings, a transport and what makes ``act``.
        settings: Function from the id of an environment to settings.
        contract: What models of your own keep: that of ``"ppo"``, ``"dqn"``,
            ``"rainbow"``, ``"ddpg"`` or ``"sac"``. Without one it takes none.
        forms: The slots that its learner has for fast forms.
        makers: Functions of your own that build its policies, for ``load``.
        chapter: Where to read about it; the default is the module of its settings.
    """

    name: str
    purpose: str
    actions: str
    config: type[Any]
    policy: Callable[..., Any]
    learner: Callable[..., Learner] | None = None
    actors: Callable[..., Learner] | None = None
    settings: Callable[[str], Any] | None = None
    contract: Literal["", "ppo", "dqn", "rainbow", "ddpg", "sac"] = ""
    forms: tuple[Slot, ...] = ()
    makers: tuple[Callable[..., PolicyLike], ...] = ()
    chapter: str = ""

    def __post_init__(self) -> None:
        trains = self.learner or self.actors
        check_that(trains is not None, "a row must have a learner or actors, got none")
        words = f"config must be a class below RunConfig, got {self.config!r}"
        check_that(issubclass(self.config, RunConfig), words)
        # Without `@checked` a setting that makes no sense would be met in the training.
        if not hasattr(self.config.__init__, "__wrapped__"):
            checked(self.config)
        # A copy of a row has the defaults of its own settings.
        if self.settings is None or getattr(self.settings, "func", None) is defaults:
            object.__setattr__(self, "settings", partial(defaults, self.config))
        chapter = self.chapter or self.config.__module__.rpartition(".")[2]
        object.__setattr__(self, "chapter", chapter)

    @property
    def key(self) -> str:
        """Its name in the table, ``"rainbowapex"`` for ``"Rainbow-Apex"``."""
        return key_of(self.name)

    @property
    def home(self) -> str:
        """The module of what trains it."""
        trains: Any = self.learner or self.actors
        return trains.__module__

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models of your own that it takes, all of them or none."""
        values = self.contract in ("dqn", "rainbow")
        return ("qnet",) if values else ("actor", "critic") if self.contract else ()


def defaults(config: type[Any], env: str) -> Any:
    """Return settings that are the same for all environments."""
    return config()


def key_of(name: str) -> str:
    """Return the name of an algorithm as the table has it."""
    return "".join(letter for letter in name.lower() if letter not in "_- ")


def by_settings(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``Row.policy``: the maker gets the settings whose names it has."""
    named = inspect.signature(make).parameters

    def policy(seen: Any, actions: Any, config: Any, **models: Any) -> Any:
        known = {"normalize": getattr(config, "normalize_obs", False)} | vars(config)
        chosen = {name: known[name] for name in named if name in known}
        return make(seen, actions, **chosen | models)

    return policy


# %% [markdown]
# ## The table
#
# A checkpoint names the function that builds its policy. `load` calls none but those of this list.


# %% tags=["export"]
ALGORITHMS: dict[str, Row] = {}
# What builds policies, and the module where it stands.
MAKERS = {
    "make_policy": "literate_rl.nets.policies",
    "make_hybrid_policy": "literate_rl.nets.hybrid_policy",
    "make_recurrent_policy": "literate_rl.nets.recurrent",
    "make_phasic_policy": "literate_rl.learners.ppg",
    "make_q_policy": "literate_rl.learners.dqn",
    "make_rainbow_policy": "literate_rl.learners.rainbow",
    "make_ddpg_policy": "literate_rl.learners.ddpg",
    "make_sac_policy": "literate_rl.learners.sac",
    "make_discrete_sac_policy": "literate_rl.learners.discrete_sac",
    "make_contract_policy": "literate_rl.check.own_models",
    "make_qnet_policy": "literate_rl.check.own_models",
    "make_own_ddpg_policy": "literate_rl.check.own_models",
    "make_own_sac_policy": "literate_rl.check.own_models",
}


def register(row: Row) -> Row:
    """Let ``train``, ``load`` and the command line know an algorithm; return its row.

    Raises:
        ValueError: If another module has an algorithm or a maker of that name.
    """
    other = "choose another name for that of your own"
    known = ALGORITHMS.get(row.key, row)
    if known.home != row.home:
        same = (known.name, known.purpose) == (row.name, row.purpose)
        check_that(same, f"{known.home} has an algorithm {known.name!r}: {other}")
        # In the notebook of a chapter its row comes a second time.
        if row.home == "__main__":
            return known
    for make in row.makers:
        name, module = make.__name__, make.__module__
        # A script that names itself is imported a second time, under its own name.
        there = MAKERS.get(name, module)
        own = there in (module, "__main__")
        check_that(own, f"{there} has a maker {name!r}: {other}")
        MAKERS[name] = module
    ALGORITHMS[row.key] = row
    return row


def maker_named(name: Any) -> Callable[..., Any] | None:
    """Return what builds policies and has this name, or None."""
    if not isinstance(name, str) or name not in MAKERS:
        return None
    return cast(Any, getattr(import_module(MAKERS[name]), name))


def actor_critic(seen: Any, actions: Any, config: Any, **models: Any) -> Any:
    """Build an actor and a critic of states by settings, whatever the actions.

    The maker is found by its name: who reads PPO need not load hybrid actions.
    """
    name = "make_hybrid_policy" if is_hybrid(actions) else "make_policy"
    if config.recurrent:
        name = "make_recurrent_policy"
    make = maker_named(name)
    return by_settings(cast(Any, make))(seen, actions, config, **models)


# %% [markdown]
# ## An algorithm of your own, in one file
#
# [PQN](https://arxiv.org/abs/2407.04811) is Q-learning without a memory of old steps and without an older copy of the
# network: it learns from fresh rollouts, and its layers are normalised. Such a file has four parts. First come
# the settings, a frozen dataclass below `RunConfig`. Under `@checked` ({doc}`/chapters/ground/signatures`) a wrong value is
# refused by its name.

# %%
from dataclasses import dataclass

import torch
from torch import nn

from literate_rl.apps.training import train
from literate_rl.data.agents import Runner
from literate_rl.data.episodes import mean_return
from literate_rl.ground.nests import remembered
from literate_rl.ground.networks import chosen
from literate_rl.ground.signatures import Count, Fraction, Positive
from literate_rl.learners.dqn import EpsilonGreedy, QLayers
from literate_rl.learners.loop import linear_schedule
from literate_rl.maths.advantages import lambda_returns
from literate_rl.nets.policies import Policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import load


@checked
@dataclass(frozen=True)
class PQNConfig(RunConfig):
    """What can be set, beside seed, steps and learning rate."""

    learning_rate: Positive = 1e-3
    num_envs: Count = 16
    num_steps: Count = 32
    num_epochs: Count = 2
    num_minibatches: Count = 4
    gamma: Fraction = 0.99
    lambda_: Fraction = 0.65
    epsilon_steps: Count = 20_000
    hidden: Count = 128


# %% [markdown]
# A maker builds the policy. `remembered` ({doc}`/chapters/ground/nests`) writes down how it was called, so that `load` can
# build the same policy again.


# %%
@remembered
def make_pqn_policy(observation_space, action_space, hidden=128):
    """Build a network with normalised layers, and an ε-greedy choice."""
    (seen,), num_actions = observation_space.shape, int(action_space.n)
    layers = []
    for size in (seen, hidden):
        layers += [nn.Linear(size, hidden), nn.LayerNorm(hidden), nn.ReLU()]
    network = QLayers(*layers, nn.Linear(hidden, num_actions))
    return Policy(network, EpsilonGreedy(num_actions))


# %% [markdown]
# The learner collects, learns and returns metrics. `Runner` ({doc}`/chapters/data/agents`) does the first for it, and knows when a
# checkpoint is due. What else a resumed run needs stands in `kept`.


# %%
class PQN(Runner):
    """Q-learning on fresh rollouts."""

    kept = (*Runner.kept, "optimizer")

    def __init__(self, policy, envs, config):
        every = config.num_steps, config.seed, config.checkpoint_interval
        super().__init__(policy, envs, *every)
        self.config = config
        self.optimizer = torch.optim.RAdam(policy.parameters(), config.learning_rate)

    def iterate(self):
        """Collect a rollout, learn from it, and return metrics by name."""
        config = self.config
        falling = linear_schedule(1.0, 0.05, config.epsilon_steps, self.step)
        self.policy.actions.epsilon = falling
        batch = self.collect()
        with torch.no_grad():
            next_value = self.policy(batch.next_obs).amax(-1)
        ends = batch.terminated, batch.truncated
        target = lambda_returns(
            batch.reward, next_value, *ends, config.gamma, config.lambda_
        )
        obs, action, target = (x[batch.real] for x in (batch.obs, batch.action, target))
        for _ in range(config.num_epochs):
            order = torch.randperm(len(obs), generator=self.generator)
            for some in order.tensor_split(config.num_minibatches):
                q = chosen(self.policy(obs[some]), action[some])
                loss = nn.functional.mse_loss(q, target[some])
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
                self.optimizer.step()
        mean = mean_return(batch.episode_return)
        return {"charts/episodic_return": mean, "losses/loss": loss.item()}


# %% [markdown]
# The file ends with the row. `by_settings` hands the maker the settings whose names it has.

# %%
pqn = register(
    Row(
        "PQN",
        "Q-learning on fresh rollouts",
        LISTED,
        PQNConfig,
        by_settings(make_pqn_policy),
        PQN,
        makers=(make_pqn_policy,),
    )
)

# %% [markdown]
# Now it is an algorithm like any other: `train` takes its row, or its name once the file is imported.

# %%
agent = train(pqn, "CartPole-v1", total_steps=51_200, progress=False)
returns = evaluate(agent.policy, "CartPole-v1", episodes=20, seed=1)
print(f"mean return of 20 episodes: {returns.mean():.0f}")

# %% tags=["claims"]
import tempfile

few = {"total_steps": 25_600, "progress": False}
with tempfile.TemporaryDirectory() as folder:
    run = train(pqn, "CartPole-v1", **few).save(f"{folder}/run")
    resumed = train("PQN", resume=run, total_steps=51_200, progress=False)
    again = load(resumed.save(f"{folder}/whole"))
for policy in (resumed.policy, again):
    assert all(map(torch.equal, policy.parameters(), agent.policy.parameters()))
assert returns.mean() > 100, "it learns"

# %% [markdown]
# On the command line `literate-rl pqn.py --env CartPole-v1` trains it, with an option for each setting.
# `--resume`, and `show` with `--algorithm pqn.py`, find its runs. A learner of one of the families has less to write: `OffPolicy` takes an
# algorithm's error ({doc}`/chapters/learners/loop`). And where a row names a `contract`, models of your own can be handed over.
#
# ## References
#
# The chapters name their sources.
