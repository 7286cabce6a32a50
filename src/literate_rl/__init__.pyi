# Generated from chapters/*.py (edit there); digest 0281b69fc68529a2
from .data.agents import (
    Collector as Collector,
    Rollout as Rollout,
    best_device as best_device,
    discounted_returns as discounted_returns,
    make_envs as make_envs,
    seed_everything as seed_everything,
    true_successors as true_successors,
)
from .maths.policy_gradient import (
    categorical_entropy as categorical_entropy,
    categorical_log_prob as categorical_log_prob,
    optimal_baseline as optimal_baseline,
    policy_gradient_error as policy_gradient_error,
)
from .maths.advantages import (
    gae as gae,
    gae_loop as gae_loop,
    lambda_returns as lambda_returns,
    n_step_returns as n_step_returns,
)
from .runs.evaluation import (
    Difference as Difference,
    evaluate as evaluate,
    paired_difference as paired_difference,
    t_interval as t_interval,
)
from .maths.ppo_error import (
    approx_kl_k3 as approx_kl_k3,
    clipped_surrogate as clipped_surrogate,
    policy_error_from_log_prob as policy_error_from_log_prob,
    ppo_info as ppo_info,
    ppo_policy_data as ppo_policy_data,
    ppo_policy_data_continuous as ppo_policy_data_continuous,
    ppo_policy_error as ppo_policy_error,
    ppo_policy_error_continuous as ppo_policy_error_continuous,
    ppo_policy_loss as ppo_policy_loss,
    ppo_value_data as ppo_value_data,
    ppo_value_error as ppo_value_error,
)
from .learners.ppo import (
    PPO as PPO,
    PPOConfig as PPOConfig,
    Samples as Samples,
    ppo_settings as ppo_settings,
)
from .learners.a2c import (
    A2C as A2C,
    A2CConfig as A2CConfig,
    GradientConfig as GradientConfig,
    GradientLearner as GradientLearner,
    a2c_error as a2c_error,
    a2c_gradient as a2c_gradient,
    a2c_loss as a2c_loss,
    a2c_settings as a2c_settings,
)
from .nets.policies import (
    ActorCritic as ActorCritic,
    CategoricalActions as CategoricalActions,
    GaussianActions as GaussianActions,
    Policy as Policy,
    RewardScaler as RewardScaler,
    Runner as Runner,
    RunningMoments as RunningMoments,
    Sampler as Sampler,
    make_actions as make_actions,
    make_policy as make_policy,
)
from .data.exact_values import (
    Ring as Ring,
    tabular_values as tabular_values,
)
from .by_hand.ppo_by_hand import (
    AuxiliaryHeads as AuxiliaryHeads,
    ByHand as ByHand,
)
from .nets.encoders import (
    MINATAR_LAYERS as MINATAR_LAYERS,
    NATURE_LAYERS as NATURE_LAYERS,
    ConvolutionalEncodingNetwork as ConvolutionalEncodingNetwork,
    Layers as Layers,
    PartsEncoder as PartsEncoder,
    PictureEncoder as PictureEncoder,
    RowEncoder as RowEncoder,
    ShapedEncoder as ShapedEncoder,
    entrance as entrance,
    make_encoder as make_encoder,
)
from .nets.choices import (
    ChoiceActions as ChoiceActions,
    is_choices as is_choices,
)
from .nets.hybrid_action import (
    HybridDistribution as HybridDistribution,
    HybridPolicyNetwork as HybridPolicyNetwork,
    as_tree as as_tree,
    mask_args as mask_args,
    sample_hybrid_action as sample_hybrid_action,
    select_args as select_args,
)
from .nets.hybrid_ppo import (
    ppo_policy_error_hybrid as ppo_policy_error_hybrid,
    ppo_policy_error_hybrid_per_head as ppo_policy_error_hybrid_per_head,
)
from .nets.masks import (
    MaskFromMethod as MaskFromMethod,
    MaskFromObservation as MaskFromObservation,
    WithoutMask as WithoutMask,
    legal as legal,
)
from .nets.disjoint_network import (
    CategoricalProjectionNetwork as CategoricalProjectionNetwork,
    DisjointPolicyValueNetwork as DisjointPolicyValueNetwork,
    EncodingNetwork as EncodingNetwork,
    NormalProjectionNetwork as NormalProjectionNetwork,
)
from .learners.ppg import (
    AuxiliaryPhase as AuxiliaryPhase,
    Chunks as Chunks,
    PPGAlgorithm as PPGAlgorithm,
    PPGAuxPhaseLossInfo as PPGAuxPhaseLossInfo,
    PPGConfig as PPGConfig,
    PhasicNetwork as PhasicNetwork,
    auxiliary_loss as auxiliary_loss,
    element_wise_squared_loss as element_wise_squared_loss,
    make_phasic_policy as make_phasic_policy,
    ppg_settings as ppg_settings,
)
from .data.windows import (
    Rings as Rings,
)
from .data.replay import (
    Batch as Batch,
    ReplayBuffer as ReplayBuffer,
    SumTree as SumTree,
    importance_weights as importance_weights,
)
from .learners.dqn import (
    DQN as DQN,
    DQNConfig as DQNConfig,
    EpsilonGreedy as EpsilonGreedy,
    Exploring as Exploring,
    ExploringConfig as ExploringConfig,
    QLearning as QLearning,
    double_q_target as double_q_target,
    dqn_settings as dqn_settings,
    dueling_q as dueling_q,
    make_q_policy as make_q_policy,
    q_target as q_target,
)
from .learners.loop import (
    ActorCriticConfig as ActorCriticConfig,
    OffPolicy as OffPolicy,
    OffPolicyConfig as OffPolicyConfig,
    QError as QError,
    TargetNetwork as TargetNetwork,
    linear_schedule as linear_schedule,
    polyak_update as polyak_update,
    squared_error as squared_error,
)
from .maths.c51 import (
    categorical_error as categorical_error,
    project_distribution as project_distribution,
    project_distribution_loop as project_distribution_loop,
)
from .learners.rainbow import (
    DistributionalQLearning as DistributionalQLearning,
    NoisyLinear as NoisyLinear,
    Rainbow as Rainbow,
    RainbowConfig as RainbowConfig,
    RainbowNetwork as RainbowNetwork,
    RainbowPolicy as RainbowPolicy,
    factorised_noise as factorised_noise,
    make_rainbow_policy as make_rainbow_policy,
    rainbow_settings as rainbow_settings,
)
from .learners.ddpg import (
    DDPG as DDPG,
    ActorCritics as ActorCritics,
    BoxActions as BoxActions,
    DDPGConfig as DDPGConfig,
    DeterministicPolicyGradient as DeterministicPolicyGradient,
    OneHotActions as OneHotActions,
    ddpg_settings as ddpg_settings,
    make_ddpg_policy as make_ddpg_policy,
)
from .learners.td3 import (
    HDDPG as HDDPG,
    TD3 as TD3,
    HDDPGConfig as HDDPGConfig,
    Hysteretic as Hysteretic,
    TD3Config as TD3Config,
    TwinDelayed as TwinDelayed,
    clipped_double_target as clipped_double_target,
    critic_error as critic_error,
    hddpg_settings as hddpg_settings,
    smoothed_action as smoothed_action,
    td3_settings as td3_settings,
)
from .learners.sac import (
    SAC as SAC,
    SACConfig as SACConfig,
    SoftActorCritic as SoftActorCritic,
    SoftPolicy as SoftPolicy,
    SoftPolicyLike as SoftPolicyLike,
    SquashedGaussian as SquashedGaussian,
    Temperature as Temperature,
    make_sac_policy as make_sac_policy,
    sac_settings as sac_settings,
    soft_value as soft_value,
    temperature_error as temperature_error,
)
from .learners.discrete_sac import (
    DiscreteCritics as DiscreteCritics,
    DiscreteSAC as DiscreteSAC,
    DiscreteSoftActorCritic as DiscreteSoftActorCritic,
    DiscreteSoftPolicy as DiscreteSoftPolicy,
    DiscreteSoftPolicyLike as DiscreteSoftPolicyLike,
    discrete_sac_settings as discrete_sac_settings,
    expected_soft_value as expected_soft_value,
    make_discrete_sac_policy as make_discrete_sac_policy,
)
from .maths.off_policy import (
    clipped_policy as clipped_policy,
    vtrace as vtrace,
    vtrace_data as vtrace_data,
    vtrace_error_continuous_action as vtrace_error_continuous_action,
    vtrace_error_discrete_action as vtrace_error_discrete_action,
    vtrace_error_from_log_prob as vtrace_error_from_log_prob,
    vtrace_loop as vtrace_loop,
    vtrace_loss as vtrace_loss,
)
from .learners.impala import (
    IMPALA as IMPALA,
    IMPALAConfig as IMPALAConfig,
    Unroll as Unroll,
    VTraceLearner as VTraceLearner,
    impala_settings as impala_settings,
    to_unroll as to_unroll,
)
from .actors.actors import (
    Actor as Actor,
    ActorLearner as ActorLearner,
    ActorsConfig as ActorsConfig,
    Census as Census,
    InProcess as InProcess,
    RemoteLearner as RemoteLearner,
    Transport as Transport,
    TransportConfig as TransportConfig,
    actors_settings as actors_settings,
    slot_layout as slot_layout,
)
from .actors.processes import (
    ActorProcess as ActorProcess,
    SharedMemory as SharedMemory,
)
from .actors.a3c import (
    A3C as A3C,
    A3CConfig as A3CConfig,
    GradientWorker as GradientWorker,
    a3c_settings as a3c_settings,
    gradient_layout as gradient_layout,
)
from .actors.apex import (
    Apex as Apex,
    ApexActor as ApexActor,
    ApexConfig as ApexConfig,
    DDPGApexConfig as DDPGApexConfig,
    DQNApexConfig as DQNApexConfig,
    RainbowApexConfig as RainbowApexConfig,
    actor_epsilons as actor_epsilons,
    apex_settings as apex_settings,
    experience_layout as experience_layout,
    first_priorities as first_priorities,
)
from .check.contracts import (
    CONTRACTS as CONTRACTS,
    Broken as Broken,
    Contract as Contract,
    ContractError as ContractError,
    Role as Role,
    check_model as check_model,
)
from .book.contract_models import (
    ActionValue as ActionValue,
    CategoricalActor as CategoricalActor,
    CategoricalQNetwork as CategoricalQNetwork,
    DeterministicActor as DeterministicActor,
    DuelingQNetwork as DuelingQNetwork,
    ProbabilityActor as ProbabilityActor,
    QNetwork as QNetwork,
    SquashedGaussianActor as SquashedGaussianActor,
    StateValue as StateValue,
)
from .ground.protocols import (
    Act as Act,
    ActionDistribution as ActionDistribution,
    ActorCriticLike as ActorCriticLike,
    Algorithm as Algorithm,
    ByHandLike as ByHandLike,
    Error as Error,
    Kept as Kept,
    Learner as Learner,
    PolicyLike as PolicyLike,
    RunConfig as RunConfig,
    Settings as Settings,
    Stateful as Stateful,
    Target as Target,
)
from .ground.rows import (
    Row as Row,
    by_settings as by_settings,
    register as register,
)
from .ground.nests import (
    REASONS as REASONS,
    SpaceError as SpaceError,
    as_discrete as as_discrete,
    as_space as as_space,
    as_vectors as as_vectors,
    ends as ends,
    is_hybrid as is_hybrid,
    leaves as leaves,
    map_nest as map_nest,
    pack as pack,
    plain_space as plain_space,
    refused as refused,
    remembered as remembered,
    unpack as unpack,
)
from .data.hybrid_space import (
    read_hybrid_space as read_hybrid_space,
)
from .nets.hybrid_policy import (
    HybridActions as HybridActions,
    make_hybrid_policy as make_hybrid_policy,
)
from .ground.networks import (
    ActionCritic as ActionCritic,
    ClipConfig as ClipConfig,
    Critics as Critics,
    GradientClip as GradientClip,
    eval_mode as eval_mode,
    randomness_kept as randomness_kept,
    squashed_log_prob as squashed_log_prob,
)
from .data.episodes import (
    EpisodeCounter as EpisodeCounter,
    check_chain as check_chain,
    check_copies as check_copies,
    check_experience as check_experience,
    env_maker as env_maker,
    env_seed as env_seed,
    flat_env as flat_env,
    on_cpu as on_cpu,
    plain_actions as plain_actions,
)
from .data.worlds import (
    ForceCartPole as ForceCartPole,
    HybridLander as HybridLander,
    Maze as Maze,
    MazeLevels as MazeLevels,
    Moving as Moving,
)
from .ground.interrupts import (
    StopWaiting as StopWaiting,
    check_interrupt as check_interrupt,
)
from .data.makers import (
    Wrapped as Wrapped,
    make_wrapped as make_wrapped,
)
from .runs.runs import (
    OwnModels as OwnModels,
    Run as Run,
    StoredRuns as StoredRuns,
    fit as fit,
    load as load,
    load_checkpoint as load_checkpoint,
    load_env as load_env,
    record_video as record_video,
    save_checkpoint as save_checkpoint,
    show as show,
    stored_runs as stored_runs,
    video_html as video_html,
)
from .data.memory import (
    BufferConfig as BufferConfig,
    UnrollBuffer as UnrollBuffer,
    distances as distances,
)
from .check.states import (
    ByName as ByName,
    StateSpec as StateSpec,
    look_around as look_around,
    state_spec as state_spec,
)
from .maths.fast import (
    categorical_terms as categorical_terms,
    project_atoms as project_atoms,
    reverse_scan as reverse_scan,
)
from .book.exercises import (
    grade as grade,
)
from .book.rooms import (
    ROOMS as ROOMS,
    House as House,
    house as house,
    room_answers as room_answers,
    six_rooms as six_rooms,
    values_and_greedy as values_and_greedy,
    visit_rooms as visit_rooms,
)
from .interfaces.alf import (
    AlgStep as AlgStep,
    LossInfo as LossInfo,
    PPGAuxAlgorithm as PPGAuxAlgorithm,
    PPGAuxOptions as PPGAuxOptions,
    PPGAuxPhaseLoss as PPGAuxPhaseLoss,
    PPGRolloutInfo as PPGRolloutInfo,
    PPGTrainInfo as PPGTrainInfo,
    TimeStep as TimeStep,
    ppg_network_forward as ppg_network_forward,
)
from .interfaces.ding import (
    IMPALAPolicy as IMPALAPolicy,
    IMPALAPolicyConfig as IMPALAPolicyConfig,
    Timestep as Timestep,
    collate as collate,
)
from .interfaces.cluster import (
    RayActors as RayActors,
    import_ray as import_ray,
)
from .check.own_models import (
    ContractPolicy as ContractPolicy,
    LogitsOf as LogitsOf,
    make_contract_policy as make_contract_policy,
    make_own_ddpg_policy as make_own_ddpg_policy,
    make_own_sac_policy as make_own_sac_policy,
    make_qnet_policy as make_qnet_policy,
)
from .by_hand.fast_forms import (
    FlatAdam as FlatAdam,
    FusedCriticError as FusedCriticError,
    FusedQError as FusedQError,
    SharesMemory as SharesMemory,
    chain_backward as chain_backward,
    chain_layers as chain_layers,
    chain_outputs as chain_outputs,
    fused_critic_error as fused_critic_error,
    fused_q_error as fused_q_error,
    numpy_act as numpy_act,
)
from .apps.training import (
    Agent as Agent,
    Options as Options,
    train as train,
)
from .apps.doctor import (
    Symptom as Symptom,
    diagnose as diagnose,
    look as look,
)
from .apps.trained import (
    TrainedAgent as TrainedAgent,
    trained_agents as trained_agents,
)
from .apps.commands import (
    OFFERED as OFFERED,
    Offer as Offer,
)
