// A film plays by itself only where it is seen and where things may move. Each has a
// button of its own; without a script the browser's controls are there.
addEventListener("DOMContentLoaded", () => {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  for (const film of document.querySelectorAll(".film video")) {
    const button = document.createElement("button");
    const draw = () => {
      button.textContent = film.paused ? "▶" : "❚❚";
      button.setAttribute("aria-label", film.paused ? "Play the film" : "Pause the film");
    };
    let wanted = "plays" in film.dataset && !still.matches;
    // A pause before the first frame breaks the promise to play: that is no error.
    const start = () => film.play().catch(() => {});
    film.controls = false;
    button.type = "button";
    button.className = "film-button";
    button.addEventListener("click", () => {
      wanted = film.paused;
      if (wanted) start(); else film.pause();
    });
    // Not every browser has a decoder for it: then there is the picture alone.
    film.addEventListener("error", () => button.remove(), true);
    film.addEventListener("play", draw);
    film.addEventListener("pause", draw);
    film.after(button);
    draw();
    still.addEventListener("change", () => {
      if (still.matches) { wanted = false; film.pause(); }
    });
    new IntersectionObserver(([seen]) => {
      if (seen.isIntersecting && wanted) start();
      else if (!seen.isIntersecting) film.pause();
    }, {threshold: 0.4}).observe(film);
  }
});
