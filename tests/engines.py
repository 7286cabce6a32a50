"""The site in Firefox and in WebKitGTK: ``make engines``, which is no part of CI.

All pages and every kind of widget, with a mouse and with keys, as wide as a phone and
as a laptop. Both browsers understand a standard of the W3C, so there is nothing between
them and this file: Firefox speaks `WebDriver BiDi
<https://w3c.github.io/webdriver-bidi/>`_ over a socket, and the driver of WebKitGTK the
older `WebDriver <https://w3c.github.io/webdriver/>`_ over HTTP. What was on the screen
is kept in ``build/engines``, to be looked at.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import websocket
from test_site import (
    CROWDED,
    CUT,
    LOOKED_AT,
    OVERHANG,
    SETTLED,
    SITE,
    TORN,
    UNHANDY,
)

SCREENS = SITE.parent / "engines"
PHONE, LAPTOP, HEIGHT = 390, 1280, 800
# Keys have these letters in both standards.
KEYS = {
    "Enter": "\ue007",
    "Control": "\ue009",
    "Escape": "\ue00c",
    "End": "\ue010",
    "Home": "\ue011",
    "ArrowLeft": "\ue012",
    "ArrowDown": "\ue015",
}


# --- Browsers -------------------------------------------------------------------------

MIDDLE = """selector => {
  const element = document.querySelector(selector);
  element.scrollIntoView({block: "center", behavior: "instant"});
  const [box] = element.getClientRects();  // of a link, its first line
  return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
}"""


class Driven:
    """A browser. Those below can `go`, `call`, `act`, `resize`, `shoot` and `close`."""

    def until(self, function: str, *arguments: Any, seconds: float = 30) -> Any:
        """Wait until a function of the page returns something true."""
        end = time.monotonic() + seconds
        while not (found := self.call(function, *arguments)):
            assert time.monotonic() < end, f"in vain: {function} {arguments}"
            time.sleep(0.05)
        return found

    def point(self, selector: str, *then: str, kind: str = "mouse") -> None:
        """Scroll to an element, move to its middle, and do more there."""
        self.until("s => document.querySelector(s)?.checkVisibility()", selector)
        x, y = self.call(MIDDLE, selector)
        moves: list[Any] = [{"type": "pointerMove", "x": x, "y": y}]
        moves += [{"type": name, "button": 0} for name in then]
        parameters = {"pointerType": kind}
        hand = {"type": "pointer", "id": kind, "parameters": parameters}
        self.act(hand | {"actions": moves})

    def click(self, selector: str) -> None:
        """Click on an element."""
        self.point(selector, "pointerDown", "pointerUp")

    def press(self, keys: str) -> None:
        """Press keys, such as ``Control+k``, and let them go."""
        values = [KEYS.get(key, key) for key in keys.split("+")]
        strokes = [{"type": "keyDown", "value": value} for value in values]
        strokes += [{"type": "keyUp", "value": value} for value in reversed(values)]
        self.act({"type": "key", "id": "keys", "actions": strokes})


class Firefox(Driven):
    """Firefox, by BiDi."""

    def __init__(self, home: Path) -> None:
        port = free_port()
        command = ["firefox-esr", "--headless", "--profile", str(home)]
        command += ["--remote-debugging-port", str(port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **quiet)
        address = f"ws://127.0.0.1:{port}/session"
        connect = partial(websocket.create_connection, suppress_origin=True)
        self.socket = patiently(lambda: connect(address, timeout=60))
        self.send("session.new", capabilities={})
        # The first tab leaves the keys to the field for addresses.
        tab = self.send("browsingContext.create", type="tab")["context"]
        self.tab = {"context": tab}

    def send(self, method: str, **params: Any) -> Any:
        """Send a message; return the answer."""
        self.socket.send(json.dumps({"id": 1, "method": method, "params": params}))
        answer = json.loads(self.socket.recv())
        assert answer["type"] == "success", answer
        return answer["result"]

    def go(self, address: str) -> None:
        """Open a page."""
        self.send("browsingContext.navigate", url=address, wait="complete", **self.tab)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function in the page; return what it returns."""
        answer = self.send(
            "script.callFunction",
            functionDeclaration=as_text(function),
            arguments=[{"type": "string", "value": json.dumps(arguments)}],
            awaitPromise=True,
            target=self.tab,
        )
        assert answer["type"] == "success", answer
        return json.loads(answer["result"]["value"])

    def act(self, source: dict[str, Any]) -> None:
        """Move the mouse, press keys."""
        self.send("input.performActions", actions=[source], **self.tab)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the page."""
        viewport = {"width": width, "height": height}
        self.send("browsingContext.setViewport", viewport=viewport, **self.tab)

    def shoot(self) -> bytes:
        """Return what is on the screen."""
        answer = self.send("browsingContext.captureScreenshot", **self.tab)
        return base64.b64decode(answer["data"])

    def close(self) -> None:
        """End it."""
        self.send("browser.close")
        self.process.wait(30)


# The buttons beside the address would keep the window wider than a phone.
NARROW_BUTTONS = "* { min-width: 0; padding: 0; margin: 0 }"


class WebKit(Driven):
    """WebKitGTK's small browser, by its driver, on a screen that nobody sees."""

    def __init__(self, home: Path) -> None:
        (home / "gtk-3.0").mkdir()
        (home / "gtk-3.0/gtk.css").write_text(NARROW_BUTTONS)
        screen = ["Xvfb", "-displayfd", "1", "-screen", "0", "1400x1000x24"]
        quiet = {"stderr": subprocess.DEVNULL}
        self.screen = subprocess.Popen(screen, stdout=subprocess.PIPE, **quiet)
        number = self.screen.stdout.readline().decode().strip()
        own = {"DISPLAY": f":{number}", "XDG_CONFIG_HOME": str(home)}
        self.address = f"http://127.0.0.1:{(port := free_port())}/session"
        command = ["WebKitWebDriver", f"--port={port}"]
        self.process = subprocess.Popen(command, env=os.environ | own, **quiet)
        options = {"binary": str(mini_browser()), "args": ["--automation"]}
        wanted = {"alwaysMatch": {"webkitgtk:browserOptions": options}}
        session = patiently(lambda: self.send("POST", "", capabilities=wanted))
        self.address += f"/{session['sessionId']}"

    def send(self, method: str, path: str, **body: Any) -> Any:
        """Send a message; return the answer."""
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self.address + path, data, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["value"]

    def go(self, address: str) -> None:
        """Open a page."""
        self.send("POST", "/url", url=address)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function in the page; return what it returns."""
        script = f"return ({as_text(function)})(arguments[0])"
        body = {"script": script, "args": [json.dumps(arguments)]}
        return json.loads(self.send("POST", "/execute/sync", **body))

    def act(self, source: dict[str, Any]) -> None:
        """Move the mouse, press keys."""
        self.send("POST", "/actions", actions=[source])

    def resize(self, width: int, height: int) -> None:
        """Change the size of the page; the window has a bar above it."""
        bar = self.call("() => outerHeight - innerHeight")
        self.send("POST", "/window/rect", width=width, height=height + bar)
        self.until("width => innerWidth === width", width)
        self.until("height => innerHeight === height", height)

    def shoot(self) -> bytes:
        """Return what is on the screen."""
        return base64.b64decode(self.send("GET", "/screenshot"))

    def close(self) -> None:
        """End it."""
        self.send("DELETE", "")
        for process in (self.process, self.screen):
            process.terminate()
            process.wait(30)


def as_text(function: str) -> str:
    """Return a function that takes its arguments and answers in JSON."""
    return (
        f"async text => JSON.stringify(await ({function})(...JSON.parse(text)) ?? null)"
    )


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def patiently(attempt: Callable[[], Any], seconds: float = 30) -> Any:
    """Try until somebody listens."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except (OSError, websocket.WebSocketException):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def mini_browser() -> Path | None:
    """Return WebKitGTK's small browser, which lies beside the library."""
    return next(Path("/usr/lib").glob("*/webkit2gtk-4.*/MiniBrowser"), None)


# --- The site -------------------------------------------------------------------------

# A browser reports what a page asks of another host, and does not ask.
POLICY = "default-src 'self' 'unsafe-inline' data: blob:"
# What goes wrong in a page is kept, from the first line on.
LISTEN = b"""<script>
  window.complaints = [];
  addEventListener("error", event =>
    complaints.push(event.message ?? `not loaded: ${event.target.outerHTML}`), true);
  addEventListener("unhandledrejection", event => complaints.push(`${event.reason}`));
  addEventListener("securitypolicyviolation", event =>
    complaints.push(`called: ${event.blockedURI}`));
  for (const kind of ["warn", "error"])
    console[kind] = (...words) => complaints.push(words.join(" "));
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Hands out the site's files, and pages with an ear."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Send a file, or the part of it that a film's player asks for."""
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        content, start = path.read_bytes(), 0
        if path.suffix == ".html":
            content = content.replace(b"<head>", b"<head>" + LISTEN, 1)
        end = len(content)
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(part[1]), min(int(part[2] or end) + 1, end)
        self.send_response(206 if part else 200)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(content[start:end])
        return None


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """Serve the site; return its address."""
    handler = partial(Handler, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


ENGINES = {"firefox": Firefox, "webkit": WebKit}


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: Any, tmp_path_factory: Any) -> Iterator[Driven]:
    """Start a browser."""
    browser = ENGINES[request.param](tmp_path_factory.mktemp("home"))
    browser.name = request.param
    SCREENS.mkdir(exist_ok=True)
    yield browser
    browser.close()


@pytest.fixture
def visit(engine: Driven, site: str) -> Iterator[Callable[..., Driven]]:
    """Return a function that opens a page; fail if a page complains."""

    def open_page(name: str, width: int = LAPTOP) -> Driven:
        engine.resize(width, HEIGHT)
        engine.go(f"{site}/{name}")
        engine.until(SETTLED, "light")
        return engine

    yield open_page
    assert engine.call("() => complaints") == []
    engine.call("() => localStorage.clear()")


def keep(engine: Driven, name: str) -> None:
    """Keep what is on the screen."""
    path = SCREENS / f"{engine.name}-{name}.png"
    path.write_bytes(engine.shoot())


# --- Pages ----------------------------------------------------------------------------

EXCESS = """() => document.documentElement.scrollWidth
  - document.documentElement.clientWidth"""
# Formulas without room or without their letters, and pictures that are not there.
MISSING = """async () => {
  const seen = selector => [...document.querySelectorAll(selector)]
    .filter(node => node.checkVisibility());
  for (const image of seen("img")) image.loading = "eager";
  await Promise.allSettled(seen("img").map(image => image.decode()));
  const formulas = seen(".katex-html");
  const faces = [...document.fonts].filter(({family, status}) =>
    family.includes("KaTeX_Main") && status === "loaded");
  return [
    ...formulas.filter(box => !box.getBoundingClientRect().width)
      .map(box => box.parentElement.textContent),
    ...(formulas.length && !faces.length ? ["no letters"] : []),
    ...seen("img").filter(image => !image.naturalWidth).map(image => image.src),
    ...seen("svg").filter(drawing => !drawing.getBoundingClientRect().height)
      .map(drawing => drawing.outerHTML.slice(0, 99))];
}"""
WRONG = {PHONE: [MISSING, TORN, UNHANDY], LAPTOP: [MISSING, CUT, CROWDED]}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_fits_its_screen_and_all_of_it_is_there(visit, name):
    page = visit(name)
    for width, faults in WRONG.items():
        page.resize(width, HEIGHT)
        page.until(SETTLED, "light")
        keep(page, f"{name.partition('.')[0].replace('/', '-')}-{width}")
        assert page.call(EXCESS) <= 0, page.call(OVERHANG)
        for fault in faults:
            assert page.call(fault) == []


# --- Widgets --------------------------------------------------------------------------

# What a figure shows: its marks, its words.
SHOWN = """selector => [...document.querySelectorAll(
  `${selector} :is(svg :is(path, text, g), output, .lr-now)`)]
  .map(({attributes: {d, transform}, textContent}) =>
    [d?.value, transform?.value, textContent]).join()"""
DIAL = "figure.lr-picture:has(input[type=range]):not(.lr-train)"
HAS_FOCUS = "selector => document.activeElement.matches(selector)"


def changes(page: Driven, selector: str, do: Callable[[], None]) -> None:
    """Do something; wait until a figure shows something else."""
    before = page.call(SHOWN, selector)
    do()
    page.until(f"(it, before) => ({SHOWN})(it) !== before", selector, before)


def test_the_mouse_and_keys_turn_a_dial(visit):
    page = visit("chapters/advantages.html", PHONE)
    slider = f"{DIAL} input"
    page.call(f"() => {{ document.querySelector('{slider}').value = 1; }}")
    changes(page, DIAL, lambda: page.click(slider))
    page.until(HAS_FOCUS, slider)
    for key in ("Home", "End", "ArrowLeft"):
        changes(page, DIAL, lambda key=key: page.press(key))
    keep(page, "dial")


def test_the_agent_is_pushed(visit):
    page = visit("chapters/ppo.html", PHONE)
    agent = "figure.lr-play"
    page.point(agent)
    changes(page, agent, lambda: None)  # it moves by itself
    page.click(f"{agent} button:nth-of-type(2)")
    pushes = """selector => [...document.querySelectorAll(`${selector} svg path`)]
      .at(-1).getAttribute("d").split("M").length - 1"""
    page.until(f"s => ({pushes})(s) === 1", agent)
    page.press("ArrowLeft")
    page.until(f"s => ({pushes})(s) === 2", agent)
    keep(page, "pushed")


def test_an_agent_is_trained_in_the_page(visit):
    page = visit("index.html", PHONE)
    train, reset = (f"figure.lr-train button:nth-of-type({n})" for n in (1, 2))
    page.click(train)
    told = "() => document.querySelector('figure.lr-train output').textContent"
    page.until(f"() => ({told})().includes('It stands')", seconds=180)
    keep(page, "trained")
    now = "() => document.querySelector('figure.lr-train .lr-now').textContent"
    page.click(reset)
    page.until(f"() => ({now})().startsWith('0 steps')")


PLAYS = """n => {
  const film = document.querySelectorAll(".film video")[n];
  return !film.paused && film.currentTime > 0.2 && film.videoWidth > 0;
}"""


def test_films_play(visit):
    page = visit("index.html", PHONE)
    page.point(".hero video")
    page.until(PLAYS, 0)
    keep(page, "film")
    page.click(".hero .film-button")
    page.until("() => document.querySelector('.hero video').paused")
    others = page.call("() => document.querySelectorAll('.films video').length")
    for number in range(1, others + 1):
        page.click(f".films > :nth-child({number}) .film-button")
        page.until(PLAYS, number)
        page.click(f".films > :nth-child({number}) .film-button")


FOUND = ".top .found a"


def test_search_is_used_with_the_keyboard_alone(visit):
    page = visit("chapters/advantages.html", PHONE)
    page.press("Control+k")
    for letter in "double dqn":
        page.press(letter)
    page.until(f"() => document.querySelector('{FOUND}')?.href.includes('dqn')")
    page.press("ArrowDown")
    page.until(HAS_FOCUS, FOUND)
    keep(page, "search")
    assert page.call(EXCESS) <= 0
    page.press("Escape")
    page.press("Enter")
    page.until("() => location.pathname.endsWith('search.html')")
    page.until("() => document.querySelectorAll('#search-results a').length > 5")


PEEK = "() => document.querySelector('#peek').matches(':popover-open')"


def test_what_a_letter_and_a_link_mean_is_shown(visit):
    page = visit("chapters/advantages.html")
    formula = "#equation-gae .katex-display"
    page.point(formula)
    page.until(PEEK)
    assert "TD error" in page.call("() => document.querySelector('#peek').textContent")
    keep(page, "letters")
    page.press("Escape")
    page.until(f"() => !({PEEK})()")
    page.resize(PHONE, HEIGHT)
    page.point("h1", "pointerDown", "pointerUp", kind="touch")
    page.until(f"() => !({PEEK})()")
    page.point(formula, "pointerDown", "pointerUp", kind="touch")
    page.until(PEEK)
    keep(page, "tapped")
