# Generated from chapters/*.py (edit there); digest be0c7e93f83a20b0
from .agents import (
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
from .advantages import (
    gae as gae,
    gae_loop as gae_loop,
    lambda_returns as lambda_returns,
    n_step_returns as n_step_returns,
    reverse_scan as reverse_scan,
)
from .ppo_error import (
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
from .hybrid_action import (
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
