"""The floors of the house from the ground up, and the modules on each.

A module imports from floors earlier in this list and from its own; ``check``,
``by_hand`` and ``interfaces`` do not import each other. The chapter ``chapters/a2c.py``
is the module ``learners.a2c``. Modules once lay as the chapters do: whoever imports
``literate_rl.ppo`` or ``literate_rl.workshop.runs`` still gets them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from warnings import warn

# Chapters by floors; ``chapter:name`` gives the module a name of its own.
FLOORS = {
    "ground": "workshop.signatures workshop.interfaces:protocols workshop.rows "
    "workshop.nests workshop.networks workshop.interrupts",
    "maths": "workshop.fast agents:returns policy_gradient advantages ppo_error "
    "off_policy dqn c51 rainbow:noisy td3 sac discrete_sac",
    "data": "workshop.hybrid_space workshop.episodes workshop.makers workshop.worlds "
    "workshop.memory workshop.collectors:agents workshop.rings:windows "
    "replay:sum_tree workshop.buffer:replay exact_values",
    "nets": "encoders:pictures workshop.make_encoder:encoders masks:masking "
    "workshop.wrappers:masks choices "
    "policies:parts workshop.make_policy:policies disjoint_network hybrid_action "
    "workshop.hybrid_policy hybrid_ppo",
    "learners": "workshop.loop workshop.dqn_learner:dqn "
    "workshop.six_parts:rainbow "
    "workshop.ddpg_learner:ddpg workshop.td3_learner:td3 "
    "workshop.sac_learner:sac "
    "workshop.discrete_sac_learner:discrete_sac a2c workshop.on_policy:ppo "
    "workshop.ppg_learner ppg impala",
    "actors": "workshop.transport:actors processes a3c apex",
    "check": "workshop.probes workshop.states workshop.rules contracts "
    "workshop.own_models",
    "by_hand": "workshop.fast_forms ppo_by_hand",
    "interfaces": "workshop.alf workshop.ding workshop.cluster",
    "runs": "evaluation workshop.runs",
    "apps": "workshop.programs workshop.commands workshop.training workshop.doctor "
    "workshop.trained workshop.cli",
    "book": "workshop.pictures workshop.exercises workshop.rooms contract_models "
    "workshop.growth workshop.playground workshop.train_here",
}

# Old modules that are not where their chapters are.
OTHERS = {
    "actors": "actors.actors",
    "agents": "data.agents",
    "ddpg": "learners.ddpg",
    "discrete_sac": "learners.discrete_sac",
    "dqn": "learners.dqn",
    "encoders": "nets.encoders",
    "hybrid_policy": "nets.hybrid_policy",
    "loop": "learners.loop",
    "masks": "nets.masks",
    "policies": "nets.policies",
    "ppo": "learners.ppo",
    "rainbow": "learners.rainbow",
    "replay": "data.replay",
    "sac": "learners.sac",
    "td3": "learners.td3",
    "windows": "data.windows",
}

# Names that are public in their modules and not at the top of the package.
BELOW_THE_TOP = {
    "ground.protocols": "Act ActorCriticLike ByHandLike Error Kept RunConfig Settings "
    "Stateful Target",
    "ground.rows": "Row by_settings",
    "ground.nests": "REASONS as_discrete as_space as_vectors ends is_hybrid leaves "
    "plain_space refused remembered",
    "ground.networks": "ActionCritic ClipConfig GradientClip eval_mode "
    "randomness_kept squashed_log_prob",
    "ground.interrupts": "StopWaiting check_interrupt",
    "maths.fast": "categorical_terms project_atoms reverse_scan",
    "maths.policy_gradient": "optimal_baseline",
    "maths.advantages": "gae_loop",
    "maths.ppo_error": "approx_kl_k3 clipped_surrogate policy_error_from_log_prob",
    "maths.off_policy": "clipped_policy vtrace_error_from_log_prob vtrace_loop",
    "maths.dqn": "dueling_q",
    "maths.noisy": "factorised_noise",
    "maths.td3": "smoothed_action",
    "maths.sac": "soft_value temperature_error",
    "maths.discrete_sac": "expected_soft_value",
    "maths.c51": "project_distribution_loop",
    "data.episodes": "EpisodeCounter check_chain check_copies check_experience "
    "env_seed on_cpu plain_actions",
    "data.makers": "Wrapped",
    "data.worlds": "MazeLevels",
    "data.memory": "distances",
    "data.agents": "true_successors",
    "data.windows": "Rings",
    "data.replay": "Batch",
    "data.sum_tree": "SumTree importance_weights",
    "data.exact_values": "Ring",
    "nets.pictures": "MINATAR_LAYERS NATURE_LAYERS Layers",
    "nets.encoders": "ConvolutionalEncodingNetwork RowEncoder ShapedEncoder entrance",
    "nets.choices": "is_choices",
    "nets.parts": "RunningMoments",
    "nets.policies": "RewardScaler Sampler make_actions",
    "nets.hybrid_action": "as_tree mask_args select_args",
    "nets.hybrid_ppo": "ppo_policy_error_hybrid_per_head",
    "learners.loop": "ActorCriticConfig QError TargetNetwork linear_schedule "
    "polyak_update squared_error",
    "learners.dqn": "EpsilonGreedy Exploring ExploringConfig QLearning",
    "learners.rainbow": "DistributionalQLearning RainbowNetwork RainbowPolicy",
    "learners.ddpg": "ActorCritics BoxActions DeterministicPolicyGradient "
    "OneHotActions",
    "learners.td3": "Hysteretic TwinDelayed critic_error",
    "learners.sac": "SoftActorCritic SoftPolicy SoftPolicyLike Temperature",
    "learners.discrete_sac": "DiscreteCritics DiscreteSoftActorCritic "
    "DiscreteSoftPolicy DiscreteSoftPolicyLike",
    "learners.a2c": "GradientConfig GradientLearner a2c_gradient a2c_loss",
    "learners.ppo": "Samples",
    "learners.ppg": "AuxiliaryPhase",
    "learners.ppg_learner": "Chunks PhasicNetwork",
    "learners.impala": "Unroll VTraceLearner to_unroll",
    "actors.actors": "Census InProcess RemoteLearner TransportConfig slot_layout",
    "actors.processes": "ActorProcess",
    "actors.a3c": "GradientWorker gradient_layout",
    "actors.apex": "ApexActor DDPGApexConfig RainbowApexConfig actor_epsilons "
    "experience_layout first_priorities",
    "check.states": "StateSpec look_around",
    "check.contracts": "Broken Role",
    "check.own_models": "ContractPolicy LogitsOf",
    "by_hand.fast_forms": "FlatAdam FusedCriticError FusedQError SharesMemory "
    "chain_backward chain_layers chain_outputs fused_critic_error",
    "interfaces.ding": "IMPALAPolicyConfig Timestep collate",
    "interfaces.cluster": "import_ray",
    "runs.evaluation": "Difference",
    "runs.runs": "OwnModels StoredRuns video_html",
    "apps.commands": "OFFERED Offer",
    "apps.doctor": "Symptom",
    "book.rooms": "ROOMS House house room_answers values_and_greedy visit_rooms",
    "book.contract_models": "ActionValue CategoricalActor CategoricalQNetwork "
    "DeterministicActor DuelingQNetwork ProbabilityActor QNetwork "
    "SquashedGaussianActor StateValue",
}


def homes() -> dict[str, str]:
    """Return the module of each chapter: ``workshop.runs`` is ``runs.runs``."""
    found = {}
    for floor, chapters in FLOORS.items():
        for entry in chapters.split():
            chapter, _, name = entry.partition(":")
            found[chapter] = f"{floor}.{name or chapter.rpartition('.')[2]}"
    return found


def from_below(name: str) -> Any:
    """Return what the top of the package had once and a module has now.

    Raises:
        AttributeError: If there was none of this name.
    """
    for home, names in BELOW_THE_TOP.items():
        if name in names.split():
            place = f"literate_rl.{home}"
            words = f"{name} will be found in {place} only"
            warn(words, DeprecationWarning, stacklevel=3)
            return getattr(import_module(place), name)
    raise AttributeError(f"module 'literate_rl' has no attribute {name!r}")


class OldAddress(MetaPathFinder, Loader):
    """Finds a module under the name that it had before the floors."""

    def __init__(self) -> None:
        # These have had other addresses.
        self.homes = homes() | OTHERS
        self.spec: dict[str, Any] = {}

    def find_spec(self, fullname: str, *where: object) -> ModuleSpec | None:
        """Say who loads an old name; other names are none of its business."""
        package, _, name = fullname.partition(".")
        if package != "literate_rl":
            return None
        if name == "workshop":
            return ModuleSpec(fullname, None, is_package=True)
        return ModuleSpec(fullname, self) if name in self.homes else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself, not a copy."""
        package, _, name = spec.name.partition(".")
        module = import_module(f"{package}.{self.homes[name]}")
        self.spec[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give back its own specification, which the old name has replaced."""
        module.__spec__ = self.spec.pop(module.__name__)
