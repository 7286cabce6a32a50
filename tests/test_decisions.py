"""Decisions: each algorithm's chapter ends with one, in the form that a page needs."""

import pytest
from decisions import CHAPTERS, Decision, DecisionError, decision, missing, wrong
from order import Chapter, read_order

SECTION = """\
# %% [markdown]
# ## Something else
#
# Words.
#
# ## When to use it
#
# Take it where steps are cheap. It needs
# more of them.
#
# - **Use it for**: all kinds of actions
# - **Rather than**: {doc}`a2c`, where a batch
#   is used once
# - **Costs**: 40,000 steps, 12 CPU seconds
# - **First settings**: `num_envs=8`, `gamma=0.98`, `num_epochs=8`
# - **Decided by**: the runs of {doc}`ppo_evidence`

# %% tags=["claims"]
assert True
"""


def chapter(text: str) -> Chapter:
    return Chapter("chapters/x", "", "1", text)


def test_a_decision_is_read():
    assert decision(chapter(SECTION)) == Decision(
        chapter(SECTION),
        "Take it where steps are cheap. It needs more of them.",
        "all kinds of actions",
        "{doc}`a2c`, where a batch is used once",
        "40,000 steps, 12 CPU seconds",
        "`num_envs=8`, `gamma=0.98`, `num_epochs=8`",
        "the runs of {doc}`ppo_evidence`",
    )
    assert decision(chapter("# %% [markdown]\n# # X\n")) is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Use it for", "For", "keys .* got For, Rather than"),
        ("**Costs**:", "**Costs:**", "line of the list"),
        ("`num_envs=8`, ", "", "three in code font, not 2"),
        ("{doc}`ppo_evidence`", "that chapter", "has a link"),
        ("It needs\n#", "It needs\n#\n#", "one paragraph"),
    ],
)
def test_another_form_is_said(old, new, said):
    assert old in SECTION
    with pytest.raises(DecisionError, match=said):
        decision(chapter(SECTION.replace(old, new)))


def test_decisions_of_the_book_have_the_form():
    assert list(wrong()) == []
    assert list(missing()) == []
    assert set(CHAPTERS) <= {each.name for each in read_order()}


def test_a_chapter_without_a_decision_is_named(tmp_path):
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters/sac.py").write_text("# %% [markdown]\n# # SAC\n")
    assert list(missing(tmp_path)) == [
        "chapters/sac.py: end with a section '## When to use it'"
    ]
