"""Literate RL: deep reinforcement learning, line by line.

Each module is a chapter of the book and holds the code that the chapter prints. Its
public names can be taken from here: ``from literate_rl import ppo_policy_error``. A
module is imported when one of its names is first used, so that importing the package
costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from literate_rl.agents import (
        Ring as Ring,
        Rollout as Rollout,
        best_device as best_device,
        check_steps as check_steps,
        discounted_returns as discounted_returns,
        grade as grade,
        make_envs as make_envs,
        rollout as rollout,
        seed_everything as seed_everything,
        tabular_values as tabular_values,
        true_successors as true_successors,
    )
    from literate_rl.ppo_error import (
        approx_kl_k3 as approx_kl_k3,
        clipped_surrogate as clipped_surrogate,
        fused_ppo_policy_error as fused_ppo_policy_error,
        policy_error_from_log_prob as policy_error_from_log_prob,
        ppo_info as ppo_info,
        ppo_policy_data as ppo_policy_data,
        ppo_policy_error as ppo_policy_error,
        ppo_policy_error_continuous as ppo_policy_error_continuous,
        ppo_policy_loss as ppo_policy_loss,
        ppo_value_data as ppo_value_data,
        ppo_value_error as ppo_value_error,
    )
    from literate_rl.hybrid_action import (
        HybridActionSpec as HybridActionSpec,
        HybridDistribution as HybridDistribution,
        HybridLander as HybridLander,
        HybridPolicyNetwork as HybridPolicyNetwork,
        Moving as Moving,
        mask_args as mask_args,
        ppo_policy_error_hybrid as ppo_policy_error_hybrid,
        ppo_policy_error_hybrid_per_head as ppo_policy_error_hybrid_per_head,
        sample_hybrid_action as sample_hybrid_action,
        select_args as select_args,
    )
else:
    from importlib import import_module

    _NAMES = {
        "agents": (
            "Ring",
            "Rollout",
            "best_device",
            "check_steps",
            "discounted_returns",
            "grade",
            "make_envs",
            "rollout",
            "seed_everything",
            "tabular_values",
            "true_successors",
        ),
        "ppo_error": (
            "approx_kl_k3",
            "clipped_surrogate",
            "fused_ppo_policy_error",
            "policy_error_from_log_prob",
            "ppo_info",
            "ppo_policy_data",
            "ppo_policy_error",
            "ppo_policy_error_continuous",
            "ppo_policy_loss",
            "ppo_value_data",
            "ppo_value_error",
        ),
        "hybrid_action": (
            "HybridActionSpec",
            "HybridDistribution",
            "HybridLander",
            "HybridPolicyNetwork",
            "Moving",
            "mask_args",
            "ppo_policy_error_hybrid",
            "ppo_policy_error_hybrid_per_head",
            "sample_hybrid_action",
            "select_args",
        ),
    }
    _MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
    __all__ = sorted(_MODULE_OF)

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
