"""The floors of the house from the ground up, and the modules on each.

A module imports from floors earlier in this list and from its own; ``check``,
``by_hand`` and ``interfaces`` do not import each other. The file
``chapters/learners/ppo.py`` is the module ``learners.ppo``; what a chapter of the book
exports lies on one of the floors as well. Modules once lay otherwise: whoever imports
``literate_rl.ppo`` or ``literate_rl.workshop.runs`` still gets them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from warnings import warn

FLOORS = {
    "ground": "signatures protocols rows nests networks interrupts",
    "maths": "scan fast returns policy_gradient advantages ppo_error off_policy dqn "
    "c51 noisy td3 sac discrete_sac",
    "data": "hybrid_space held makers episodes worlds memory agents windows sum_tree "
    "replay exact_values",
    "nets": "pictures encoders masking masks choices parts cells policies "
    "disjoint_network hybrid_action hybrid_policy recurrent hybrid_ppo",
    "learners": "loop dqn rainbow ddpg td3 sac discrete_sac a2c ppo ppg_learner ppg "
    "impala",
    "actors": "actors processes a3c apex",
    "check": "probes states rules contracts own_models",
    "by_hand": "fast_forms ppo_by_hand",
    "interfaces": "alf ding cluster",
    "runs": "evaluation runs",
    "apps": "programs commands training doctor trained cli",
    "book": "pictures exercises rooms contract_models growth playground train_here",
}

# Chapters of the book whose module has another name, because a learner has theirs.
TAUGHT_BY = {
    "maths.returns": "agents",
    "maths.noisy": "rainbow",
    "data.sum_tree": "replay",
    "nets.pictures": "encoders",
    "nets.masking": "masks",
    "nets.parts": "policies",
    "nets.cells": "recurrent",
}

# Names that are public in their modules and not at the top of the package.
BELOW_THE_TOP = {
    "ground.protocols": "Act ActorCriticLike ByHandLike Error Kept RecurrentConfig "
    "RunConfig Settings Stateful Target",
    "ground.rows": "Row by_settings",
    "ground.nests": "REASONS as_discrete as_space as_vectors ends is_hybrid leaves "
    "plain_space refused remembered",
    "ground.networks": "ActionCritic ClipConfig GradientClip eval_mode "
    "randomness_kept squashed_log_prob",
    "ground.interrupts": "StopWaiting check_interrupt",
    "maths.fast": "categorical_terms gru_scan pieces_of project_atoms",
    "maths.scan": "reverse_scan",
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
    "data.held": "Held",
    "data.makers": "Wrapped check_copies",
    "data.episodes": "EpisodeCounter check_experience env_seed on_cpu plain_actions",
    "data.worlds": "ForceCartPole HybridLander MazeLevels TMaze",
    "data.memory": "distances",
    "data.agents": "Sampler Window seen_by true_successors",
    "data.windows": "Rings",
    "data.replay": "Batch",
    "data.sum_tree": "SumTree importance_weights",
    "data.exact_values": "Ring check_chain",
    "nets.pictures": "MINATAR_LAYERS NATURE_LAYERS Layers",
    "nets.encoders": "ConvolutionalEncodingNetwork RowEncoder ShapedEncoder entrance",
    "nets.choices": "is_choices",
    "nets.parts": "RewardScaler RunningMoments",
    "nets.cells": "Memory gru_step lstm_step",
    "nets.recurrent": "RecurrentEncodingNetwork RecurrentPolicy",
    "nets.policies": "make_actions",
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
    "by_hand.fast_forms": "FlatAdam FusedQError SharesMemory "
    "chain_backward chain_layers chain_outputs",
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


def modules() -> list[str]:
    """Return all modules from the ground up, such as ``learners.ppo``."""
    return [f"{floor}.{name}" for floor, x in FLOORS.items() for name in x.split()]


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
        # Where two have one name, it was that of the upper one.
        self.homes = {module.rpartition(".")[2]: module for module in modules()}
        self.homes["interfaces"] = "ground.protocols"
        self.spec: dict[str, Any] = {}

    def find_spec(self, fullname: str, *where: object) -> ModuleSpec | None:
        """Say who loads an old name; other names are none of its business."""
        if fullname == "literate_rl.workshop":
            return ModuleSpec(fullname, None, is_package=True)
        package, _, name = fullname.rpartition(".")
        old = package in ("literate_rl", "literate_rl.workshop") and name in self.homes
        return ModuleSpec(fullname, self) if old else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself, not a copy."""
        home = self.homes[spec.name.rpartition(".")[2]]
        module = import_module(f"literate_rl.{home}")
        self.spec[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give back its own specification, which the old name has replaced."""
        module.__spec__ = self.spec.pop(module.__name__)
