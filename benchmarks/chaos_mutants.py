"""Mutants: would the tests notice if the mathematics were wrong?

A mutant is a copy of the package in which one thing of a formula was changed: plus to
minus, a bound, the order of a comparison, a missing ``detach``. The tests of its module
run against the copy, and the first one that fails has killed it. A mutant that survives
is a formula that no test holds, or one that computes the same thing. The latter are
listed in ``EQUIVALENT`` with the reason, and are not drawn.

Run it alone with ``python -m benchmarks.chaos_mutants SEED COUNT [MODULE ...]``.

When code is rebuilt, what its tests noticed before they have to notice afterwards.
``python -m benchmarks.chaos_mutants again [LIST] [OLD=NEW ...]`` looks for the
statements of the list ``results/mutants.csv`` in the code of today, changes them as
they were changed then, and says of each: it dies, it lives, or the line is gone.
``OLD=NEW`` tells that something has another name now.
"""

from __future__ import annotations

import ast
import copy
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.store import RESULTS, read_table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/literate_rl"

# What a test run may take, in seconds. A mutant may make a loop endless.
PATIENCE = 150.0

# Whole runs take long and notice a wrong formula by chance, if at all. A formula has to
# be held by a test that looks at it.
LEFT_OUT = (
    "learns_to",
    "learns_moving",
    "resumed",
    "command_line",
    "users",
    "killed",
    "save",
)


class Place(NamedTuple):
    """Functions of a module, and the tests that hold them.

    Attributes:
        module: The module, such as ``maths.dqn``.
        functions: Names of functions, or of methods as ``Class.method``.
        tests: Names of test files.
    """

    module: str
    functions: str
    tests: str


PLACES = (
    Place(
        "maths.policy_gradient",
        "categorical_log_prob policy_gradient_error "
        "optimal_baseline categorical_entropy",
        "policy_gradient",
    ),
    Place(
        "maths.advantages", "gae_loop gae lambda_returns n_step_returns", "advantages"
    ),
    Place(
        "maths.ppo_error",
        "clipped_surrogate policy_error_from_log_prob ppo_policy_error "
        "ppo_policy_error_continuous gaussian ppo_value_error approx_kl_k3",
        "ppo_error",
    ),
    Place("maths.scan", "reverse_scan", "scan"),
    Place(
        "maths.fast",
        "CategoricalTerms.forward CategoricalTerms.backward categorical_terms",
        "fast",
    ),
    Place("maths.fast", "log_softmax hybrid_terms", "hybrid_action hybrid_policy"),
    Place("maths.fast", "project_atoms", "c51"),
    Place(
        "by_hand.fast_forms",
        "layers_of linear stretch numpy_act chain_outputs chain_backward "
        "FusedQError.backward fused_q_error",
        "fast_forms",
    ),
    Place(
        "nets.hybrid_action",
        "HybridPolicyNetwork.forward sample_hybrid_action draw "
        "mask_args select_args args_log_density args_divergence "
        "HybridDistribution.__init__ HybridDistribution.often "
        "HybridDistribution.mode HybridDistribution.log_prob_of_heads "
        "HybridDistribution.log_prob HybridDistribution.entropy "
        "HybridDistribution.kl",
        "hybrid_action",
    ),
    Place(
        "nets.hybrid_ppo",
        "ppo_policy_error_hybrid new_and_old ppo_policy_error_hybrid_per_head",
        "hybrid_ppo",
    ),
    Place(
        "maths.off_policy",
        "vtrace_loop vtrace check_clips clipped_policy "
        "vtrace_error_from_log_prob vtrace_error_discrete_action discrete_terms "
        "vtrace_error_continuous_action continuous_terms",
        "off_policy",
    ),
    Place(
        "learners.ppg",
        "element_wise_squared_loss auxiliary_loss AuxiliaryPhase.observe "
        "AuxiliaryPhase.run AuxiliaryPhase.learn",
        "ppg",
    ),
    Place("learners.ppg_learner", "one_row in_chunks", "ppg_learner ppg"),
    Place(
        "learners.impala",
        "to_unroll VTraceLearner.learn VTraceLearner.next_value VTraceLearner.anneal",
        "impala",
    ),
    Place("data.memory", "distances", "impala"),
    Place("ground.networks", "GradientClip.__call__", "impala"),
    Place("learners.a2c", "a2c_error a2c_gradient GradientLearner.learn", "a2c"),
    Place(
        "data.sum_tree",
        "SumTree.__init__ SumTree.total SumTree.update SumTree.find importance_weights",
        "replay",
    ),
    Place(
        "data.replay",
        "ReplayBuffer.sample ReplayBuffer.windows ReplayBuffer.update",
        "replay",
    ),
    Place(
        "learners.dqn",
        "EpsilonGreedy.noise dueling_layer QLearning.error Exploring.explore",
        "dqn",
    ),
    Place(
        "maths.dqn",
        "q_target double_q_target dueling_q",
        "dqn",
    ),
    Place(
        "learners.loop",
        "QError.backward squared_error polyak_update TargetNetwork.follow "
        "linear_schedule OffPolicy.prepare OffPolicy.anneal OffPolicy.learn "
        "OffPolicy.descend OffPolicy.sample",
        "loop dqn ddpg td3",
    ),
    Place(
        "maths.dqn",
        "td_target",
        "loop dqn ddpg td3",
    ),
    Place(
        "maths.c51",
        "project_distribution_loop project_distribution categorical_error",
        "c51",
    ),
    Place(
        "maths.noisy",
        "factorised_noise NoisyLinear.__init__ NoisyLinear.forward",
        "rainbow",
    ),
    Place(
        "learners.rainbow",
        "RainbowNetwork.forward RainbowPolicy.mean "
        "DistributionalQLearning.error of_action",
        "rainbow",
    ),
    Place(
        "nets.parts",
        "CategoricalActions.noise CategoricalActions.choose "
        "CategoricalActions.evaluate CategoricalActions.kl GaussianActions.choose "
        "GaussianActions.log_prob GaussianActions.entropy GaussianActions.kl "
        "RunningMoments.update "
        "RunningMoments.forward RewardScaler.forward",
        "policies",
    ),
    Place("nets.cells", "gru_step lstm_step Memory.loop Memory.forward", "recurrent"),
    Place("maths.fast", "GRUScan.forward GRUScan.backward pieces_of", "recurrent"),
    Place("data.agents", "without Window.take as_read behind", "recurrent"),
    Place(
        "nets.choices",
        "options ChoiceActions.__init__ ChoiceActions.table ChoiceActions.noise "
        "ChoiceActions.choose ChoiceActions.evaluate ChoiceActions.kl "
        "ChoiceActions.to_env",
        "choices",
    ),
    Place(
        "ground.networks",
        "race_noise chosen expected mean_surprise normal_log_prob",
        "policies choices",
    ),
    Place("ground.networks", "squashed_log_prob", "networks"),
    Place("actors.apex", "first_priorities actor_epsilons", "apex"),
    Place(
        "learners.ddpg",
        "OneHotActions.noise OneHotActions.choose BoxActions.noise "
        "BoxActions.choose DeterministicPolicyGradient.aim "
        "DeterministicPolicyGradient.error DeterministicPolicyGradient.ascent",
        "ddpg",
    ),
    Place(
        "maths.td3",
        "smoothed_action clipped_double_target",
        "td3",
    ),
    Place(
        "learners.td3",
        "critic_error TwinDelayed.aim Hysteretic.error",
        "td3",
    ),
    Place("maths.sac", "soft_value temperature_error", "sac"),
    Place(
        "learners.sac",
        "SquashedGaussian.choose "
        "SquashedGaussian.draw SquashedGaussian.log_prob SquashedGaussian.entropy "
        "entropy_scale Temperature.loss "
        "Temperature.metrics SoftActorCritic.worth SoftActorCritic.error "
        "SoftActorCritic.ascent",
        "sac",
    ),
    Place("maths.discrete_sac", "expected_soft_value", "discrete_sac"),
    Place(
        "learners.discrete_sac",
        "DiscreteSoftActorCritic.scale "
        "DiscreteSoftActorCritic.worth "
        "DiscreteSoftActorCritic.ascent "
        "DiscreteCritics.forward",
        "discrete_sac",
    ),
)

CUT_OFF = "the function of the targets detaches what it gets: only time is lost"

# Mutants that compute the same thing, by their names, with the proof.
EQUIVALENT: dict[str, str] = {
    "nets.cells.Memory.forward: 1 -> 2": "a row of padding that nobody reads",
    "nets.cells.Memory.forward: 1 -> 2 (2)": "likewise, a column",
    "learners.sac.SquashedGaussian.entropy: 7 -> 8": (
        "the weights add up to 1 wherever the integral ends, and beyond 7 deviations "
        "they are below 1e-10"
    ),
    "learners.sac.SquashedGaussian.entropy: 7 -> 8 (2)": "likewise, at the other end",
    "maths.fast.log_softmax: len(logit) < 1024 -> len(logit) <= 1024": (
        "both ways compute the same, and only their speed differs"
    ),
    "maths.fast.log_softmax: len(logit) < 1024 -> len(logit) > 1024": "likewise",
    "maths.fast.log_softmax: 1024 -> 1025": "likewise",
    "learners.sac.SquashedGaussian.entropy: 141 -> 142": (
        "the trapezoidal rule has converged far below the rounding of float32"
    ),
    "nets.hybrid_action.args_divergence: 1.0 -> 1.5": (
        "any number will do that can be divided by: what comes of it is multiplied by 0"
    ),
    "nets.hybrid_action.args_divergence: 1.0 -> 1.5 (2)": "likewise",
    "maths.ppo_error.clipped_surrogate: adv < 0 -> adv <= 0": (
        "without an advantage the objective and its gradient are 0 on both ways"
    ),
    "learners.td3.critic_error: target.detach() - q > 0 -> target.detach() - q >= 0": (
        "without an error its square and its slope are 0 at both rates"
    ),
    "ground.networks.expected: 0.0 -> 1.0": (
        "any finite number will do: it is multiplied by 0"
    ),
    "nets.choices.ChoiceActions.table: "
    "1 -> 2 (2)": "no place points to a second column",
    "maths.ppo_error.ppo_policy_error: "
    "data.logit_old.detach() -> data.logit_old": CUT_OFF,
    "maths.off_policy.discrete_terms: "
    "behaviour_output.detach() -> behaviour_output": CUT_OFF,
    "maths.ppo_error.gaussian: "
    "sigma > 0 -> sigma >= 0": "0 has a square that is too small",
    "maths.ppo_error.policy_error_from_log_prob: "
    "torch.no_grad() -> torch.enable_grad()": (
        "what is watched leaves as plain numbers: only time is lost"
    ),
    "maths.ppo_error.gaussian: sigma.detach() -> sigma": (
        "the variance is only looked at: only time is lost"
    ),
    "maths.scan.reverse_scan: result.sum() -> result.mean()": (
        "a mean is a sum divided by a number: one is finite where the other is"
    ),
    "learners.ppg.AuxiliaryPhase.learn: x.detach() -> x": (
        "the table of what was seen is only read: a graph that it kept costs memory"
    ),
    "actors.apex.first_priorities: torch.no_grad() -> torch.enable_grad()": (
        "the TD errors of all our error functions have no graph: only time is lost"
    ),
    "nets.hybrid_action.HybridDistribution.log_prob_of_heads: 0.0 -> 1.0": (
        "any finite number will do: only whether the sum is finite is looked at"
    ),
    "nets.hybrid_action.HybridDistribution.log_prob_of_heads: 1 -> 2": (
        "likewise, a factor of 2 at the most"
    ),
    "nets.hybrid_ppo.ppo_policy_error_hybrid_per_head: "
    "torch.zeros_like(args_new) -> torch.ones_like(args_new)": (
        "the entropy of this term is not used"
    ),
    "maths.fast.project_atoms: 1 -> 2 (4)": (
        "one column more, and all columns behind the atoms are cut off"
    ),
    "learners.dqn.QLearning.error: torch.no_grad() -> torch.enable_grad()": CUT_OFF,
    "learners.rainbow.DistributionalQLearning.error: "
    "torch.no_grad() -> torch.enable_grad()": CUT_OFF,
    "learners.ddpg.DeterministicPolicyGradient.aim: "
    "torch.no_grad() -> torch.enable_grad()": CUT_OFF,
    "learners.td3.TwinDelayed.aim: torch.no_grad() -> torch.enable_grad()": CUT_OFF,
    "learners.sac.SoftActorCritic.error: "
    "torch.no_grad() -> torch.enable_grad()": CUT_OFF,
    "learners.discrete_sac.DiscreteSoftActorCritic.worth: "
    "torch.no_grad() -> torch.enable_grad()": (
        "the gradient is asked for with respect to actor and temperature only"
    ),
    "learners.a2c.a2c_gradient: torch.no_grad() -> torch.enable_grad()": CUT_OFF,
}


# --- Where the mutants come from ------------------------------------------------------


class Mutant(NamedTuple):
    """One change of a module.

    Attributes:
        place: Where it is.
        function: The function that is changed.
        line: Its line in the module, from 1.
        start: First byte of what is replaced.
        end: The byte behind it.
        old: What is replaced.
        new: What replaces it.
        nth: Which one it is of those that read the same, from 1.
    """

    place: Place
    function: str
    line: int
    start: int
    end: int
    old: str
    new: str
    nth: int = 1

    @property
    def name(self) -> str:
        """A name that lasts as long as the code does not change."""
        nth = f" ({self.nth})" if self.nth > 1 else ""
        return f"{self.place.module}.{self.function}: {self.old} -> {self.new}{nth}"

    def text(self) -> str:
        """Return the module with this change."""
        source = path_of(self.place.module).read_bytes()
        parts = source[: self.start], self.new.encode(), source[self.end :]
        return b"".join(parts).decode()


def path_of(module: str) -> Path:
    """Return the file of a module, or of a program."""
    return PACKAGE / f"{module.replace('.', '/')}.py"


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Return every mutant that can be made, those listed as equivalent included."""
    return tuple(mutant for place in PLACES for mutant in mutants_of(place))


def mutants_of(place: Place) -> Iterator[Mutant]:
    """Yield the mutants of some functions of a module."""
    source = path_of(place.module).read_bytes()
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    functions = functions_of(ast.parse(source))
    for name in place.functions.split():
        seen: dict[tuple[str, str], int] = {}
        for node, new in changes(functions[name]):
            begin: Any = node
            start = starts[begin.lineno - 1] + begin.col_offset
            end = starts[begin.end_lineno - 1] + begin.end_col_offset
            old = source[start:end].decode()
            short = (" ".join(old.split()), new)
            seen[short] = seen.get(short, 0) + 1
            yield Mutant(place, name, begin.lineno, start, end, *short, nth=seen[short])


def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions and methods of a module by name."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            methods = [x for x in node.body if isinstance(x, ast.FunctionDef)]
            found |= {f"{node.name}.{method.name}": method for method in methods}
    return found


# --- What is changed ------------------------------------------------------------------

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
EDGES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.GtE: ast.Gt,
}
WORDS = {
    "min": "max",
    "amin": "amax",
    "argmin": "argmax",
    "minimum": "maximum",
    "sum": "mean",
    "cumsum": "cumprod",
    "square": "abs",
    "abs": "square",
    "sqrt": "square",
    "exp": "expm1",
    "expm1": "exp",
    "log": "log1p",
    "no_grad": "enable_grad",
    "ones_like": "zeros_like",
    "zeros_like": "ones_like",
    "log_softmax": "softmax",
}
WORDS |= {new: old for old, new in WORDS.items() if new in ("max", "amax", "argmax")}
WORDS |= {"maximum": "minimum", "mean": "sum"}

# Messages and the search for a culprit are no mathematics.
SILENT = ("check_finite",)

# What computes the same if its first two arguments change places, or nothing at all.
EITHER_WAY = {"min", "max", "minimum", "maximum", "check_that", "get", "getattr"}
EITHER_WAY |= {"hasattr", "isinstance", "partial", "setattr", "zip"}


def changes(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes of a function that can be replaced, and by what."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    defaults = [x for x in function.args.defaults if x]
    for part in [*function.decorator_list, *defaults, *body]:
        for node in nodes(part):
            for new in replacements(node):
                yield node, ast.unparse(ast.fix_missing_locations(new))
            if isinstance(node, ast.If | ast.While):
                test = node.test
                # Comparisons and what has a `not` are turned round as such.
                if not isinstance(test, ast.Compare | ast.UnaryOp):
                    yield test, f"not ({ast.unparse(test)})"


def nodes(part: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, but no annotations, messages and guards."""
    if isinstance(part, ast.Raise | ast.JoinedStr):
        return
    if isinstance(part, ast.keyword) and part.arg == "strict":
        return
    call = part.value if isinstance(part, ast.Expr) else part
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") in SILENT:
        return
    yield part
    for name, value in ast.iter_fields(part):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from nodes(child)


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what could stand instead of a node, each with one thing changed."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield altered(node, op=OPERATORS[type(node.op)]())
    if isinstance(node, ast.BoolOp):
        yield altered(node, op=OPERATORS[type(node.op)]())
    if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield altered(node, op=OPERATORS[type(node.op)]())
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for table in (OPERATORS, EDGES):
            if type(node.ops[0]) in table:
                yield altered(node, ops=[table[type(node.ops[0])]()])
    # The sign of a whole number marks an axis from the end, often the same as from the
    # start.
    if isinstance(node, ast.UnaryOp) and not is_whole(node.operand):
        yield bracketed(node.operand)
    if isinstance(node, ast.Constant):
        yield from map(ast.Constant, other_constants(node.value))
    if isinstance(node, ast.Call):
        yield from other_calls(node)
        yield from swapped(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    if isinstance(node, ast.Slice):
        yield from other_slices(node)
    if isinstance(node, ast.IfExp):
        yield bracketed(altered(node, body=node.orelse, orelse=node.body))


def is_whole(node: ast.AST) -> bool:
    """Say whether a node is a whole number."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def altered(node: ast.AST, **fields: Any) -> Any:
    """Return a copy of a node with other fields, in brackets where that matters."""
    own = {name: getattr(node, name, None) for name in node._fields}
    new: Any = type(node)(**(own | fields))
    return bracketed(new) if isinstance(node, ast.BinOp) else new


def bracketed(node: ast.AST) -> ast.AST:
    """Return a node that is written with brackets around it."""
    return ast.Name(f"({ast.unparse(node)})")


def other_constants(value: object) -> Iterator[Any]:
    """Yield constants to replace another one."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        # Half of a share is a share, so that a signature does not refuse it.
        yield value / 2 if 0 < value < 1 else 1.5 * value if value else 1.0


def other_calls(node: ast.Call) -> Iterator[ast.AST]:
    """Yield calls with another function or with arguments in another order."""
    function = node.func
    if not isinstance(function, ast.Attribute):
        if isinstance(function, ast.Name) and function.id in ("min", "max"):
            yield altered(node, func=ast.Name(WORDS[function.id]))
        return
    if function.attr == "detach":
        yield function.value
    if function.attr in WORDS:
        yield altered(node, func=altered(function, attr=WORDS[function.attr]))
    if function.attr == "where" and len(node.args) == 3:
        condition, yes, no = node.args
        yield altered(node, args=[condition, no, yes])
    if function.attr in ("clamp", "clamp_") and node.keywords:
        (keyword, *_) = node.keywords
        turned = ast.keyword(WORDS.get(str(keyword.arg), "min"), keyword.value)
        yield altered(node, keywords=[turned])
    if function.attr in ("clamp", "clamp_") and len(node.args) == 2:
        for bound, arg in zip(("min", "max"), node.args, strict=True):
            yield altered(node, args=[], keywords=[ast.keyword(bound, arg)])


def swapped(node: ast.Call) -> Iterator[ast.AST]:
    """Yield a call whose first two arguments have changed places."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if len(node.args) < 2 or name in EITHER_WAY:
        return
    one, two, *others = node.args
    starred = isinstance(one, ast.Starred) or isinstance(two, ast.Starred)
    if not starred and ast.dump(one) != ast.dump(two):
        yield altered(node, args=[two, one, *others])


def other_slices(node: ast.Slice) -> Iterator[ast.AST]:
    """Yield slices that leave out the other end."""
    one = ast.Constant(1)
    if node.step is None and ast.unparse(node) == "1:":
        yield ast.Slice(None, ast.UnaryOp(ast.USub(), one))
    if node.step is None and ast.unparse(node) == ":-1":
        yield ast.Slice(one, None)


# --- What becomes of them -------------------------------------------------------------

# What a fresh process has already imported when it is forked; the package is not among
# it, because each process imports another copy.
PRELOADED = [
    "torch",
    "numpy",
    "gymnasium",
    "jaxtyping",
    "treetensor.torch",
    "hypothesis.strategies",
    "playwright.sync_api",
    "pytest",
]


class FirstFailure:
    """A plugin of pytest that remembers the first test that failed."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Look at a test."""
        if report.failed and not self.name:
            self.name = report.nodeid.removeprefix("tests/")

    def pytest_collectreport(self, report: Any) -> None:
        """Look at the import of a test file."""
        if report.failed and not self.name:
            self.name = "import"


def run_tests(source: str, tests: list[str], answer: Connection) -> None:
    """Run test files against a copy of the package and send the first failure."""
    os.environ["PYTHONPATH"] = source
    sys.path.insert(0, source)
    # The next process need not compile again what has not changed.
    sys.dont_write_bytecode = False
    os.chdir(ROOT)
    import pytest

    first = FirstFailure()
    options = ["-x", "-q", "-p", "no:cacheprovider"]
    # A test that is named is wanted, whatever its name.
    if not any("::" in test for test in tests):
        options += ["-k", " and ".join(f"not {word}" for word in LEFT_OUT)]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = pytest.main([*options, *tests], plugins=[first])
    answer.send(first.name or ("" if code == 0 else f"pytest ended with {code}"))


def first_failure(source: Path, tests: list[str]) -> str:
    """Return the first test that fails against a copy of the package, or ''."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run_tests, args=(str(source), tests, theirs))
    process.start()
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(PATIENCE) else "out of time"
    except EOFError:
        return "the process died"
    finally:
        process.kill()
        process.join()


def trials(
    seed: int, count: int, modules: Iterable[str] = ()
) -> list[dict[str, object]]:
    """Make random mutants of the mathematics and run the tests of their modules.

    Args:
        seed: Decides which mutants are made.
        count: How many.
        modules: Only those of these modules; none for all.

    Returns:
        A row for each mutant: file, line, function, change, and in ``killed_by`` the
        test that noticed it, or "survived".

    Raises:
        ValueError: If a mutant listed as equivalent no longer exists.
        RuntimeError: If a test that killed a mutant fails without one too.
    """
    rows = list(trials_one_by_one(seed, count, modules))
    killers = [str(row["killed_by"]) for row in rows]
    check_the_killers([f"tests/{name}" for name in killers if "::" in name])
    return rows


def check_the_killers(killers: Iterable[str]) -> None:
    """Raise if a test that killed a mutant fails without one too."""
    files: dict[str, set[str]] = defaultdict(set)
    for test in killers:
        files[test.partition("::")[0]].add(test)
    with tempfile.TemporaryDirectory() as folder:
        source = copied(folder)
        for tests in files.values():
            if failure := first_failure(source, sorted(tests)):
                raise RuntimeError(f"fails without a mutant: {failure}")


def trials_one_by_one(
    seed: int, count: int, modules: Iterable[str] = ()
) -> Iterator[dict[str, object]]:
    """Yield the rows of ``trials`` as they come."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    check_the_list()
    chosen = set(modules) or {place.module for place in PLACES}
    pool = [
        mutant
        for mutant in all_mutants()
        if mutant.name not in EQUIVALENT and mutant.place.module in chosen
    ]
    drawn = random.Random(seed).sample(pool, min(count, len(pool)))
    with tempfile.TemporaryDirectory() as folder:
        source = copied(folder)
        for mutant in drawn:
            yield judged(mutant, source)


def copied(folder: str) -> Path:
    """Copy the package; return where to import the copy from."""
    source = Path(folder) / "src"
    shutil.copytree(PACKAGE, source / PACKAGE.name)
    return source


def killer_of(module: str, text: str, source: Path, tests: list[str]) -> str:
    """Put a changed module into the copy, run tests, and put the original back."""
    original = path_of(module)
    target = source / original.relative_to(PACKAGE.parent)
    target.write_text(text)
    try:
        return first_failure(source, tests)
    finally:
        shutil.copy2(original, target)


def judged(mutant: Mutant, source: Path) -> dict[str, object]:
    """Return what becomes of a mutant."""
    module, names = mutant.place.module, [*mutant.place.tests.split(), "defaults"]
    tests = [f"tests/test_{name}.py" for name in names]
    killer = killer_of(module, mutant.text(), source, tests)
    return {
        "file": str(path_of(module).relative_to(ROOT)),
        "line": mutant.line,
        "function": mutant.function,
        "change": mutant.name.partition(": ")[2],
        "killed_by": killer or "survived",
    }


def check_the_list() -> None:
    """Raise if a mutant listed as equivalent no longer exists."""
    names = {mutant.name for mutant in all_mutants()}
    if gone := [name for name in EQUIVALENT if name not in names]:
        raise ValueError(f"listed as equivalent, but not there any more: {gone}")


# --- Those that died before -----------------------------------------------------------

LIST = RESULTS / "mutants.csv"
BLOCKS = ("body", "orelse", "handlers", "finalbody")


class Listed(NamedTuple):
    """A mutant that a test has killed, told without numbers of lines.

    Attributes:
        module: Where it was, below the package.
        function: The function, or the method as ``Class.method``.
        kind: What kind of change it is.
        before: The statement, without the statements inside it.
        after: What stood there instead.
        killed_by: The test that noticed it.
    """

    module: str
    function: str
    kind: str
    before: str
    after: str
    killed_by: str

    def renamed(self, names: list[tuple[str, str]]) -> Listed:
        """Return the mutant as it reads where old names have become new ones."""
        fields: list[str] = list(self)
        for old, new in names:
            word = re.compile(rf"\b{re.escape(old)}\b")
            fields = [word.sub(new, field) for field in fields]
        return Listed(*fields)


class Spot(NamedTuple):
    """Where a statement stands: the module, the function, and its number in there."""

    module: str
    function: str
    number: int


def statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements in the functions of a module, with the functions' names."""
    for name, function in functions_of(tree).items():
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not function:
                yield name, node


def headed(statement: ast.stmt) -> str:
    """Return a statement as text, without the statements inside it."""
    head = copy.copy(statement)
    for block in BLOCKS:
        if hasattr(head, block):
            setattr(head, block, [])
    return ast.unparse(head)


def parsed(text: str) -> ast.stmt:
    """Return a statement of which ``headed`` made a text."""
    (statement,) = ast.parse(text + " pass" if text.endswith(":") else text).body
    return statement


@cache
def all_spots() -> dict[str, list[Spot]]:
    """Return where in the package each statement stands."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        pairs = statements(ast.parse(path.read_bytes()))
        for number, (function, statement) in enumerate(pairs):
            found[headed(statement)].append(Spot(module, function, number))
    return found


def spots_of(row: Listed) -> list[Spot]:
    """Return where a statement stands today: where it stood, or as near as can be."""

    def distance(spot: Spot) -> tuple[bool, ...]:
        # A method may have moved to another class.
        name, old = (x.function.rpartition(".")[2] for x in (spot, row))
        return name != old, spot.module != row.module, spot.function != row.function

    # Each Python writes a statement in a way of its own.
    spots = all_spots().get(headed(parsed(row.before)), [])
    nearest = min(map(distance, spots), default=())
    return [spot for spot in spots if distance(spot) == nearest]


def exchanged(spot: Spot, after: str) -> str:
    """Return a module in which a statement was changed."""
    tree = ast.parse(path_of(spot.module).read_bytes())
    _, old = list(statements(tree))[spot.number]
    new = parsed(after)
    for block in BLOCKS:
        if hasattr(new, block):
            setattr(new, block, getattr(old, block))
    for parent in ast.walk(tree):
        for block in BLOCKS:
            inside = getattr(parent, block, None)
            if isinstance(inside, list) and old in inside:
                inside[inside.index(old)] = new
    return ast.unparse(tree)


def judged_again(row: Listed, source: Path) -> dict[str, Any]:
    """Return what becomes of a mutant of the list: it dies, lives, or is gone."""
    spots = spots_of(row)
    told = {**row._asdict(), "at": [f"{spot.module}.{spot.function}" for spot in spots]}
    if len(spots) != 1:
        return {**told, "now": "line gone"}
    (spot,) = spots
    elsewhere = spot[:2] != row[:2]
    # First the test that noticed it then, which may have another name now. After it the
    # tests of where the statement was and of where it is.
    file = row.killed_by.partition("::")[0]
    names = dict.fromkeys([file, f"test_{spot.module.rpartition('.')[2]}.py"])
    files = [f"tests/{name}" for name in names if (ROOT / "tests" / name).exists()]
    for tests in ([f"tests/{row.killed_by}"], files):
        killer = killer_of(spot.module, exchanged(spot, row.after), source, tests)
        if killer and not killer.startswith("pytest ended with"):
            now = "dies elsewhere" if elsewhere else "dies"
            found = [f"tests/{killer}"] if "::" in killer else tests
            return {**told, "now": now, "killed_by": killer, "tests": found}
    return {**told, "now": "lives"}


def again(words: list[str]) -> None:
    """Print what becomes of the mutants of a list, then how many died."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    path, *_ = [Path(word) for word in words if "=" not in word] + [LIST]
    names = [(old, new) for old, is_, new in (x.partition("=") for x in words) if is_]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = copied(folder)
        for entry in read_table(path)[0]:
            rows.append(judged_again(Listed(**entry).renamed(names), source))
            print(json.dumps(rows[-1]), flush=True)
    check_the_killers(test for row in rows for test in row.get("tests", []))
    print(dict(Counter(row["now"] for row in rows)))


def main() -> None:
    """Print the rows of a run as they come, then how many survived."""
    if sys.argv[1:2] == ["again"]:
        again(sys.argv[2:])
        return
    seed, count, *modules = sys.argv[1:]
    rows = []
    for row in trials_one_by_one(int(seed), int(count), modules):
        print(json.dumps(row), flush=True)
        rows.append(row)
    survived = sum(row["killed_by"] == "survived" for row in rows)
    print(f"{survived} of {len(rows)} mutants survived")


if __name__ == "__main__":
    main()
