// What the pages do beside being read. Without this script they are complete all the
// same: formulas are set, the contents open, and films and folded parts are the browser's.

const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
// Private windows may refuse to remember.
const remember = (key, value) => { try { localStorage.setItem(key, value); } catch { /* so be it */ } };
const recall = key => { try { return localStorage.getItem(key); } catch { return null; } };

// --- Light or dark: as the system has it, until the reader chooses.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => {
    if (!recall("theme")) root.dataset.theme = dark.matches ? "dark" : "light";
  });
  const button = document.querySelector(".scheme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    remember("theme", root.dataset.theme);
  });
}

// --- The switch between two columns and the plain notebook. The choice is kept.
{
  const button = document.querySelector(".weave-switch");
  if (button) {
    const label = () => {
      button.textContent =
        root.dataset.weave === "plain" ? "Show in two columns" : "Show the plain notebook";
    };
    button.addEventListener("click", () => {
      const plain = root.dataset.weave !== "plain";
      if (plain) root.dataset.weave = "plain";
      else delete root.dataset.weave;
      remember("weave", plain ? "plain" : "columns");
      label();
    });
    label();
  }
}

// --- Where am I? The contents mark the section that is being read; the start page leads
// back to it.
{
  const links = all("#contents .sections a");
  const sections = links.map(link => document.getElementById(link.hash.slice(1)));
  const mark = () => {
    const above = sections.filter(x => x && x.getBoundingClientRect().top < 160);
    links.forEach((link, i) => {
      if (i === above.length - 1) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
    if (above.length && document.body.matches(".chapter")) {
      const link = links[above.length - 1];
      const title = document.querySelector("h1").innerText;
      remember("reading", JSON.stringify({ href: link.href, words: `${title.trim()}: ${link.textContent}` }));
    }
  };
  let waiting = false;
  if (links.length) addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(); });
  }, { passive: true });
  if (links.length) mark();
  const current = document.querySelector("#contents a[aria-current=page]");
  const box = document.getElementById("contents");
  if (current) box.scrollTop = Math.max(0, current.offsetTop - box.clientHeight / 3);
  box.addEventListener("click", event => {
    if (event.target.closest("a") && box.matches(":popover-open")) box.hidePopover();
  });

  const last = JSON.parse(recall("reading") ?? "null");
  const place = document.querySelector(".landing h1");
  if (place && last) {
    const line = document.createElement("p");
    line.className = "continue";
    const link = document.createElement("a");
    link.href = last.href;
    link.textContent = last.words;
    line.append("Go on reading: ", link);
    place.after(line);
  }
}

// --- On a phone what is long ends after some rows, until one asks for all: code, lists,
// exercises, and sections where there are so many that one looks something up. What is searched,
// linked to, reached by Tab or printed is shown unasked. The style sheet cuts lists and
// sections before this runs, so that nothing moves.
{
  const long = `.weave-columns, .cell_input .highlight, .indextable td,
    .look-up article > section > section, #exercises,
    .chapter section section:has(> section:nth-of-type(10)) > section`;
  const rows = text => text.trim().split("\n").reduce((n, line) => n + Math.ceil(line.length / 48), 0);
  for (const box of all(long)) {
    const within = box.closest("details, .cut");
    box.classList.add(within || rows(box.textContent) < 22 ? "whole" : "cut");
    if (box.matches(".whole")) continue;
    const button = document.createElement("button");
    button.className = "show-all";
    const code = all(".weave-code, :scope > pre", box).map(part => part.textContent.trim()).join("\n");
    button.textContent = code ? `Show all ${code.split("\n").length} lines` : "Show all";
    const show = () => {
      const seen = box.scrollTop;
      box.classList.replace("cut", "whole");
      button.remove();
      scrollBy(0, seen);
    };
    button.addEventListener("click", show);
    box.addEventListener("scroll", show);
    box.append(button);
  }
}

// --- What scrolls sideways can be reached with the keyboard, what does not is no stop.
// Names in code are links for the mouse; the API page lists them for the keyboard.
{
  const boxes = ".katex-display, article table, .weave-code, .cell_output, article pre:not(.weave-code pre)";
  // Asked when the browser has laid a box out, not before: a long page lays out what is seen.
  const sizes = new ResizeObserver(entries => {
    const wide = entries.map(({ target }) => target.scrollWidth > target.clientWidth);
    entries.forEach(({ target }, i) => {
      if (wide[i]) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    });
  });
  for (const link of all(".highlight a")) link.tabIndex = -1;
  addEventListener("load", () => document.fonts.ready.then(() => all(boxes).forEach(box => sizes.observe(box))));
}

// --- A link into a folded part opens it. On paper all is open, and afterwards as before.
{
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let box = target.closest("details") ?? target.querySelector(":scope > details"); box; box = box.parentElement?.closest("details")) box.open = true;
    target.closest(".cut")?.lastElementChild.click();
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("article details:not([open])");
    opened.forEach(box => { box.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach(box => { box.open = false; }));
}

// --- A citation, a word, an equation: what a link leads to is shown beside it.
{
  const box = document.createElement("div");
  box.className = "peek";
  box.popover = "manual";
  box.setAttribute("role", "tooltip");
  box.id = "peek";
  document.body.append(box);
  const key = link => link.pathname.split("/").pop().replace(".html", "") + link.hash.replace("#", "-");
  const content = link => {
    const template = document.getElementById(`peek-${key(link)}`);
    if (template) return template.content.cloneNode(true);
    if (!link.hash.startsWith("#equation-") || link.pathname !== location.pathname) return null;
    return document.getElementById(link.hash.slice(1))?.querySelector(".katex-display")?.cloneNode(true);
  };
  let timer;
  const hide = () => { clearTimeout(timer); if (box.matches(":popover-open")) box.hidePopover(); };
  const show = (place, inside) => {
    box.replaceChildren(inside);
    box.showPopover();
    const at = place.getBoundingClientRect();
    const left = Math.min(at.left, root.clientWidth - box.offsetWidth - 16);
    const below = at.bottom + 8 + box.offsetHeight < innerHeight;
    box.style.left = `${Math.max(16, left) + scrollX}px`;
    box.style.top = `${scrollY + (below ? at.bottom + 8 : at.top - box.offsetHeight - 8)}px`;
  };
  const offer = (place, inside, focused, delay) => {
    place.addEventListener("pointerenter", event => {
      if (event.pointerType === "mouse") timer = setTimeout(() => show(place, inside()), delay);
    });
    place.addEventListener("pointerleave", hide);
    focused.addEventListener("focus", () => { if (focused.matches(":focus-visible")) show(place, inside()); });
    focused.addEventListener("blur", hide);
  };
  for (const link of all("article a[href*='#']")) {
    if (!link.matches(".headerlink") && content(link)) offer(link, () => content(link), link, 150);
  }
  // What the letters of an equation mean: by mouse, by a tap, or at its number by Tab.
  for (const equation of all("div.math[id]")) {
    const template = document.getElementById(`where-${equation.id}`);
    const number = equation.querySelector(".headerlink");
    if (!template || !number) continue;
    const formula = equation.querySelector(".katex-display");
    const inside = () => template.content.cloneNode(true);
    offer(formula, inside, number, 400);
    formula.addEventListener("click", () => show(formula, inside()));
  }
  addEventListener("pointerdown", event => { if (!event.target.closest(".katex-display")) hide(); });
  addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
}

// --- The page of all equations shows those whose words one types.
{
  const boxes = all(".equation-box");
  if (boxes.length) {
    const field = document.createElement("input");
    field.type = "search";
    field.className = "filter";
    field.placeholder = "Show those with these words";
    field.setAttribute("aria-label", field.placeholder);
    document.querySelector("h1").after(field);
    field.addEventListener("input", () => {
      for (const button of all(".show-all")) button.click();
      const words = field.value.toLowerCase().split(/\s+/);
      for (const box of boxes) {
        const text = `${box.textContent} ${box.closest("section").querySelector("h2").textContent}`;
        box.hidden = !words.every(word => text.toLowerCase().includes(word));
      }
      for (const part of all("article section section")) part.hidden = !part.querySelector(".equation-box:not([hidden])");
    });
  }
}
