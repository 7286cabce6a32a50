# Generated from chapters/*.py (edit there); digest d5a6e52df2a1370b
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
from .runs import (
    Learner as Learner,
    Policy as Policy,
    Run as Run,
    StoredRuns as StoredRuns,
    bootstrap_interval as bootstrap_interval,
    env_seed as env_seed,
    evaluate as evaluate,
    fit as fit,
    flat_env as flat_env,
    load as load,
    load_checkpoint as load_checkpoint,
    record_video as record_video,
    save_checkpoint as save_checkpoint,
    show as show,
    stored_runs as stored_runs,
    video_html as video_html,
)
from .policy_gradient import (
    categorical_entropy as categorical_entropy,
    categorical_log_prob as categorical_log_prob,
    optimal_baseline as optimal_baseline,
    policy_gradient_error as policy_gradient_error,
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
from .ppo import (
    PPO as PPO,
    DiscretePolicy as DiscretePolicy,
    GaussianPolicy as GaussianPolicy,
    PPOConfig as PPOConfig,
    RewardScaler as RewardScaler,
    RunningMoments as RunningMoments,
    make_policy as make_policy,
    numpy_act as numpy_act,
    ppo_settings as ppo_settings,
)
from .hybrid_action import (
    HybridActionSpec as HybridActionSpec,
    HybridDistribution as HybridDistribution,
    HybridLander as HybridLander,
    HybridPolicy as HybridPolicy,
    HybridPolicyNetwork as HybridPolicyNetwork,
    Moving as Moving,
    mask_args as mask_args,
    ppo_policy_error_hybrid as ppo_policy_error_hybrid,
    ppo_policy_error_hybrid_per_head as ppo_policy_error_hybrid_per_head,
    sample_hybrid_action as sample_hybrid_action,
    select_args as select_args,
)
from .disjoint_network import (
    CategoricalProjectionNetwork as CategoricalProjectionNetwork,
    DisjointPolicyValueNetwork as DisjointPolicyValueNetwork,
    EncodingNetwork as EncodingNetwork,
    NormalProjectionNetwork as NormalProjectionNetwork,
    RecurrentEncodingNetwork as RecurrentEncodingNetwork,
)
from .off_policy import (
    categorical_terms as categorical_terms,
    clipped_policy as clipped_policy,
    vtrace as vtrace,
    vtrace_data as vtrace_data,
    vtrace_error_continuous_action as vtrace_error_continuous_action,
    vtrace_error_discrete_action as vtrace_error_discrete_action,
    vtrace_loss as vtrace_loss,
)
