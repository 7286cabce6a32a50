# Generated from chapters/*.py (edit there); digest 19e233954306b910
from .maths.returns import (
    discounted_returns as discounted_returns,
)
from .maths.policy_gradient import (
    categorical_entropy as categorical_entropy,
    categorical_log_prob as categorical_log_prob,
    policy_gradient_error as policy_gradient_error,
)
from .maths.advantages import (
    gae as gae,
    lambda_returns as lambda_returns,
    n_step_returns as n_step_returns,
)
from .maths.ppo_error import (
    ppo_info as ppo_info,
    ppo_policy_data as ppo_policy_data,
    ppo_policy_data_continuous as ppo_policy_data_continuous,
    ppo_policy_error as ppo_policy_error,
    ppo_policy_error_continuous as ppo_policy_error_continuous,
    ppo_policy_loss as ppo_policy_loss,
    ppo_value_data as ppo_value_data,
    ppo_value_error as ppo_value_error,
)
from .runs.evaluation import (
    evaluate as evaluate,
    paired_difference as paired_difference,
    t_interval as t_interval,
)
from .nets.parts import (
    ActorCritic as ActorCritic,
    CategoricalActions as CategoricalActions,
    GaussianActions as GaussianActions,
)
from .nets.pictures import (
    PictureEncoder as PictureEncoder,
)
from .nets.choices import (
    ChoiceActions as ChoiceActions,
)
from .nets.masking import (
    legal as legal,
)
from .nets.hybrid_action import (
    HybridDistribution as HybridDistribution,
    HybridPolicyNetwork as HybridPolicyNetwork,
    sample_hybrid_action as sample_hybrid_action,
)
from .nets.hybrid_ppo import (
    ppo_policy_error_hybrid as ppo_policy_error_hybrid,
)
from .nets.disjoint_network import (
    CategoricalProjectionNetwork as CategoricalProjectionNetwork,
    DisjointPolicyValueNetwork as DisjointPolicyValueNetwork,
    EncodingNetwork as EncodingNetwork,
    NormalProjectionNetwork as NormalProjectionNetwork,
)
from .learners.ppg import (
    PPGAlgorithm as PPGAlgorithm,
    PPGAuxPhaseLossInfo as PPGAuxPhaseLossInfo,
    auxiliary_loss as auxiliary_loss,
    element_wise_squared_loss as element_wise_squared_loss,
)
from .maths.dqn import (
    double_q_target as double_q_target,
    q_target as q_target,
)
from .maths.c51 import (
    categorical_error as categorical_error,
    project_distribution as project_distribution,
)
from .maths.noisy import (
    NoisyLinear as NoisyLinear,
)
from .maths.td3 import (
    clipped_double_target as clipped_double_target,
)
from .maths.off_policy import (
    vtrace as vtrace,
    vtrace_data as vtrace_data,
    vtrace_error_continuous_action as vtrace_error_continuous_action,
    vtrace_error_discrete_action as vtrace_error_discrete_action,
    vtrace_loss as vtrace_loss,
)
from .learners.impala import (
    IMPALA as IMPALA,
    IMPALAConfig as IMPALAConfig,
    impala_settings as impala_settings,
)
from .check.contracts import (
    CONTRACTS as CONTRACTS,
    Contract as Contract,
    ContractError as ContractError,
    check_model as check_model,
)
from .learners.a2c import (
    A2C as A2C,
    A2CConfig as A2CConfig,
    a2c_error as a2c_error,
    a2c_settings as a2c_settings,
)
from .data.exact_values import (
    tabular_values as tabular_values,
)
from .by_hand.ppo_by_hand import (
    ByHand as ByHand,
)
from .actors.processes import (
    SharedMemory as SharedMemory,
)
from .actors.a3c import (
    A3C as A3C,
    A3CConfig as A3CConfig,
    a3c_settings as a3c_settings,
)
from .actors.apex import (
    Apex as Apex,
    ApexConfig as ApexConfig,
    DQNApexConfig as DQNApexConfig,
    apex_settings as apex_settings,
)
from .ground.protocols import (
    ActionDistribution as ActionDistribution,
    Algorithm as Algorithm,
    Learner as Learner,
    PolicyLike as PolicyLike,
)
from .ground.rows import (
    register as register,
)
from .ground.nests import (
    SpaceError as SpaceError,
    map_nest as map_nest,
    pack as pack,
    unpack as unpack,
)
from .ground.networks import (
    Critics as Critics,
)
from .data.hybrid_space import (
    read_hybrid_space as read_hybrid_space,
)
from .data.makers import (
    env_maker as env_maker,
    flat_env as flat_env,
    make_wrapped as make_wrapped,
)
from .data.worlds import (
    Maze as Maze,
    Moving as Moving,
    SelectObservation as SelectObservation,
)
from .data.memory import (
    BufferConfig as BufferConfig,
    UnrollBuffer as UnrollBuffer,
)
from .data.agents import (
    Collector as Collector,
    Rollout as Rollout,
    Runner as Runner,
    best_device as best_device,
    make_envs as make_envs,
    seed_everything as seed_everything,
)
from .data.replay import (
    ReplayBuffer as ReplayBuffer,
)
from .nets.encoders import (
    PartsEncoder as PartsEncoder,
    make_encoder as make_encoder,
)
from .nets.masks import (
    MaskFromMethod as MaskFromMethod,
    MaskFromObservation as MaskFromObservation,
    WithoutMask as WithoutMask,
)
from .nets.policies import (
    Policy as Policy,
    make_policy as make_policy,
)
from .nets.hybrid_policy import (
    HybridActions as HybridActions,
    make_hybrid_policy as make_hybrid_policy,
)
from .nets.recurrent import (
    make_recurrent_policy as make_recurrent_policy,
)
from .learners.loop import (
    OffPolicy as OffPolicy,
    OffPolicyConfig as OffPolicyConfig,
)
from .learners.dqn import (
    DQN as DQN,
    DQNConfig as DQNConfig,
    dqn_settings as dqn_settings,
    make_q_policy as make_q_policy,
)
from .learners.rainbow import (
    Rainbow as Rainbow,
    RainbowConfig as RainbowConfig,
    make_rainbow_policy as make_rainbow_policy,
    rainbow_settings as rainbow_settings,
)
from .learners.ddpg import (
    DDPG as DDPG,
    DDPGConfig as DDPGConfig,
    ddpg_settings as ddpg_settings,
    make_ddpg_policy as make_ddpg_policy,
)
from .learners.td3 import (
    HDDPG as HDDPG,
    TD3 as TD3,
    HDDPGConfig as HDDPGConfig,
    TD3Config as TD3Config,
    hddpg_settings as hddpg_settings,
    td3_settings as td3_settings,
)
from .learners.sac import (
    SAC as SAC,
    SACConfig as SACConfig,
    SquashedGaussian as SquashedGaussian,
    make_sac_policy as make_sac_policy,
    sac_settings as sac_settings,
)
from .learners.discrete_sac import (
    DiscreteSAC as DiscreteSAC,
    discrete_sac_settings as discrete_sac_settings,
    make_discrete_sac_policy as make_discrete_sac_policy,
)
from .learners.ppo import (
    PPO as PPO,
    PPOConfig as PPOConfig,
    ppo_settings as ppo_settings,
)
from .learners.ppg_learner import (
    PPGConfig as PPGConfig,
    make_phasic_policy as make_phasic_policy,
    ppg_settings as ppg_settings,
)
from .actors.actors import (
    Actor as Actor,
    ActorLearner as ActorLearner,
    ActorsConfig as ActorsConfig,
    Transport as Transport,
    actors_settings as actors_settings,
)
from .check.states import (
    ByName as ByName,
    state_spec as state_spec,
)
from .check.own_models import (
    make_contract_policy as make_contract_policy,
    make_own_ddpg_policy as make_own_ddpg_policy,
    make_own_sac_policy as make_own_sac_policy,
    make_qnet_policy as make_qnet_policy,
)
from .by_hand.fast_forms import (
    fused_q_error as fused_q_error,
    numpy_act as numpy_act,
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
)
from .interfaces.cluster import (
    RayActors as RayActors,
)
from .runs.runs import (
    Run as Run,
    fit as fit,
    load as load,
    load_checkpoint as load_checkpoint,
    load_env as load_env,
    record_video as record_video,
    save_checkpoint as save_checkpoint,
    show as show,
    stored_runs as stored_runs,
)
from .apps.training import (
    Agent as Agent,
    Options as Options,
    train as train,
)
from .apps.doctor import (
    diagnose as diagnose,
    look as look,
)
from .apps.trained import (
    TrainedAgent as TrainedAgent,
    trained_agents as trained_agents,
)
from .book.exercises import (
    grade as grade,
)
from .book.rooms import (
    six_rooms as six_rooms,
)
