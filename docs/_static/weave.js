// The switch between two columns and the plain notebook. The choice is kept.
(() => {
  const root = document.documentElement;
  const key = "weave";
  const stored = () => {
    try { return localStorage.getItem(key); } catch { return null; }
  };
  if (stored() === "plain") root.dataset.weave = "plain";

  document.addEventListener("DOMContentLoaded", () => {
    const facts = document.querySelector(".chapter-facts");
    if (!facts || !document.querySelector(".woven")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "weave-switch";
    const label = () => {
      button.textContent =
        root.dataset.weave === "plain" ? "Show in two columns" : "Show the plain notebook";
    };
    button.addEventListener("click", () => {
      const plain = root.dataset.weave !== "plain";
      if (plain) root.dataset.weave = "plain";
      else delete root.dataset.weave;
      try { localStorage.setItem(key, plain ? "plain" : "columns"); } catch { /* private */ }
      label();
    });
    label();
    facts.append(button);
  });
})();

// What scrolls sideways can be reached with the keyboard, what does not is no stop.
(() => {
  const boxes = "mjx-container[display], .bd-article table, .weave-code, .cell_output";
  const reach = () => {
    for (const box of document.querySelectorAll(boxes)) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("load", async () => {
    await window.MathJax?.startup?.promise;
    reach();
    addEventListener("resize", reach);
  });
})();
