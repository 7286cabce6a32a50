"""The agent in the page: its script against Gymnasium and torch, and in a browser."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect
from torch import nn

from literate_rl.book import pictures, playground
from literate_rl.book.pictures import Widget
from literate_rl.book.playground import PUSH, play, push_cartpole, rounded


def networks() -> tuple[nn.Sequential, nn.Sequential]:
    """Return an actor that balances the pole and a critic with hidden layers."""
    torch.manual_seed(1)
    actor = nn.Sequential(nn.Linear(4, 2))
    to_right = torch.tensor([0.1, 0.2, 2.0, 0.6])
    actor[0].weight.data = torch.stack([-to_right, to_right])
    actor[0].bias.data.zero_()
    layers = nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    return actor, nn.Sequential(*layers)


@pytest.fixture(scope="module")
def widget() -> Widget:
    """Return the widget of these two."""
    return push_cartpole(*networks())


# --- The script's mathematics ---------------------------------------------------------


def test_the_physics_is_that_of_gymnasium(show):
    env: Any = gym.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    # Nothing ends this game: it sees far more than an episode does.
    rng = np.random.default_rng(1)
    states, actions = rng.normal(0, [2, 2, 1, 3], (500, 4)), rng.integers(2, size=500)
    found = show().evaluate(
        f"""([states, actions]) => {{
          {pictures.script("cartpole")}
          return states.map((state, i) => physics(state, 20 * actions[i] - 10));
        }}""",
        [states.tolist(), actions.tolist()],
    )
    for state, action, after in zip(states, actions, found, strict=True):
        env.state, env.steps_beyond_terminated = state, None
        env.step(action)
        np.testing.assert_allclose(after, env.state, rtol=1e-6, atol=1e-12)


def test_the_networks_are_those_of_torch(show):
    states = torch.randn(500, 4, dtype=torch.float64)
    for network in map(rounded, networks()):
        found = show().evaluate(
            f"""([layers, states]) => {{
              {pictures.script("cartpole")}
              return states.map(state => forward(layers, state).at(-1));
            }}""",
            [playground.layers(network), states.tolist()],
        )
        # The weights are those that are written: four digits, which float64 holds.
        exact = network.double()
        for weight in exact.parameters():
            weight.data = playground.in_digits(weight)
        wanted = exact(states).detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12)


def test_a_network_that_the_script_cannot_compute_is_an_error():
    actor, _ = networks()
    hooked = nn.Sequential(nn.Linear(4, 1))
    hooked[0].register_forward_hook(lambda module, inputs, output: -output)
    for wrong in (hooked, nn.Sequential(nn.Linear(4, 1), nn.Tanh())):
        with pytest.raises(ValueError, match="must be Linear, Tanh"):
            push_cartpole(actor, wrong)


def test_without_a_browser_one_sees_a_game(widget):
    assert "It was pushed once at step 100" in widget.html


# --- The game in Gymnasium ------------------------------------------------------------


def test_a_push_turns_the_pole_at_its_step_and_a_hard_one_ends_the_episode():
    plain, pushed = (play(*networks(), p, 30) for p in ({}, {20: PUSH}))
    assert plain.states[:20] == pushed.states[:20]
    before, after = plain.states[20], pushed.states[20]
    assert after == pytest.approx([*before[:3], before[3] + PUSH])
    hard = play(*networks(), {20: 10.0})
    assert hard.fell
    assert 20 < len(hard.values) < 30


def test_a_game_without_a_push_is_that_of_gymnasium():
    actor, critic = networks()
    played = play(actor, critic, {}, num_steps=50, seed=3)
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=3)
    for state, value in zip(played.states, played.values, strict=True):
        np.testing.assert_allclose(state, obs, rtol=1e-5, atol=1e-7)
        row = torch.as_tensor(obs)
        assert value == pytest.approx(critic(row).item(), abs=1e-5)
        obs, *_ = env.step(int(actor(row).argmax()))


# --- In a browser ---------------------------------------------------------------------


def drawing(page: Page) -> list[str | None]:
    """Return where cart and pole stand, the line and the dots."""
    return page.evaluate(
        """() => {
          const all = (what) => [...document.querySelectorAll(`.lr-play ${what}`)];
          return [...all(".lr-moves").map(mark => mark.getAttribute("transform")),
            ...all(".lr-line, .lr-dots").map(mark => mark.getAttribute("d"))];
        }"""
    )


def test_it_plays_by_itself_once_it_is_seen(show, widget):
    page = show(widget, reduced_motion="no-preference")
    page.evaluate("document.querySelector('main').style.paddingTop = '3000px'")
    page.wait_for_timeout(500)
    still = drawing(page)
    page.wait_for_timeout(300)
    assert drawing(page) == still
    page.locator("figure").scroll_into_view_if_needed()
    expect(page.locator(".lr-line")).not_to_have_attribute("d", str(still[-2]))


def test_keys_and_buttons_push_pause_and_go_on(show, widget):
    page = show(widget, reduced_motion="reduce")
    still = drawing(page)
    page.wait_for_timeout(500)
    assert drawing(page) == still, "for those who ask for it"
    page.keyboard.press("Tab")
    expect(page.locator("figure")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    # The line grows, and begins anew.
    points = "document.querySelector('.lr-line').getAttribute('d').split('L').length"
    again = page.get_by_role("button", name="Start again")
    again.click()
    page.wait_for_function(f"{points} > 30")
    again.click()
    page.wait_for_function(f"{points} < 30")
    dots = str(drawing(page)[-1])
    page.get_by_role("button", name="Push left").click()
    expect(page.locator(".lr-dots")).not_to_have_attribute("d", dots)


def test_enough_pushes_end_an_episode_and_another_begins(show, widget):
    page = show(widget, reduced_motion="reduce")
    # All in one moment: the cart has no time to get under the pole.
    page.get_by_role("button", name="Push left").evaluate(
        "button => { for (let i = 0; i < 12; i++) button.click(); }"
    )
    words = page.locator("output")
    expect(words).to_contain_text(re.compile(r"The last episode ended after \d+ steps"))
    expect(words).to_contain_text("the pole leaned too far")
    page.wait_for_timeout(1500)
    lean = float(re.findall(r"rotate\((-?[\d.]+)", str(drawing(page)[2]))[0])
    assert abs(lean) < 45
