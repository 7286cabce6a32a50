// Search as one types: the words of a query are looked up in the index of the site's
// sections, `_static/search-index.js`, which is read when the field is first used. No page
// is fetched. The page of results has the same list, longer.
(() => {
  const root = document.documentElement.dataset.content_root;
  const field = document.querySelector(".top .search input");
  const list = document.querySelector(".top .search ol");
  let index = null;

  function load() {
    index ??= new Promise(ready => {
      const script = document.createElement("script");
      script.src = `${root}_static/search-index.js`;
      script.onload = () => ready(searchIndex);
      document.head.append(script);
    });
    return index;
  }

  // As docs/_ext/search.py, which made the index.
  function stem(word, endings) {
    if (word.length < 5) return word.length > 3 ? word.replace(/s$/, "") : word;
    const cut = word.slice(0, 3) + word.slice(3).replace(new RegExp(endings), "");
    return cut.replace(/([b-df-hj-np-tv-z])\1$/, "$1").replace(/(?:ies?|y)$/, "i");
  }

  function words(query, { common, endings }) {
    const even = query.toLowerCase().replaceAll("isa", "iza").replaceAll("ise", "ize");
    const found = (even.match(/[\p{L}\p{N}]+/gu) ?? []).map(word => stem(word, endings));
    const rare = found.filter(word => !common.includes(word));
    return rare.length ? rare : found;
  }

  // A word that nobody has may be the beginning of one that is being typed.
  function entriesOf(word, { stems }) {
    if (Object.hasOwn(stems, word)) return [[stems[word], 1]];
    return Object.keys(stems).filter(x => x.startsWith(word)).map(x => [stems[x], 0.7]);
  }

  // The sections that have all words, or else most of them, the best first. Rare words
  // count more; a title that says the query, and no more than that, counts most.
  function find(asked, data) {
    const scores = new Map();
    asked.forEach((word, place) => {
      for (const [entry, share] of entriesOf(word, data)) {
        const rarity = Math.log(1 + 2 * data.sections.length / entry.length);
        for (let k = 0; k < entry.length; k += 2) {
          const score = scores.get(entry[k]) ?? { met: new Set(), sum: 0 };
          score.met.add(place);
          score.sum += share * rarity * entry[k + 1];
          scores.set(entry[k], score);
        }
      }
    });
    const most = Math.max(...[...scores.values()].map(score => score.met.size));
    const whole = asked.join(" ");
    const found = [...scores].filter(([, score]) => score.met.size === most).map(([number, { sum }]) => {
      const title = words(data.sections[number][2].replace(/^\w{1,2} /, ""), data).join(" ");
      const same = data.sections[number][1] ? 4 : 10; // a whole page about it
      return [number, title === whole ? same * sum : title.includes(whole) ? 1.5 * sum : sum];
    });
    found.sort((a, b) => b[1] - a[1]);
    return { most, sections: found.map(([number]) => data.sections[number]) };
  }

  function entry([page, anchor, title, excerpt], { pages }) {
    const [name, pageTitle] = pages[page];
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `${root}${name}.html${anchor && "#"}${anchor}`;
    link.textContent = title;
    const small = document.createElement("small");
    small.textContent = anchor ? pageTitle : "";
    const text = document.createElement("p");
    text.textContent = excerpt;
    link.append(small);
    item.append(link, text);
    return item;
  }

  // What is not in the book is said, also where some of its words are.
  function answer(query, data, most) {
    const asked = words(query, data);
    if (!asked.length) return [];
    const found = find(asked, data);
    const lacks = data.missing.filter(([those]) => those.every(word => asked.includes(word)));
    const notes = lacks.map(([, text]) => `Not in this book: ${text}.`);
    if (!found.sections.length) notes.push("No section has this word.");
    else if (found.most < asked.length) notes.push("No section has all these words.");
    return [
      ...notes.map(text => Object.assign(document.createElement("li"), { textContent: text })),
      ...found.sections.slice(0, most).map(section => entry(section, data)),
    ];
  }

  async function show() {
    const query = field.value;
    const items = query.trim() ? answer(query, await load(), 8) : [];
    if (query !== field.value) return;
    list.replaceChildren(...items);
    list.hidden = !items.length;
  }

  field.addEventListener("focus", load, { once: true });
  field.addEventListener("input", show);
  addEventListener("pointerdown", event => { if (!event.target.closest(".search")) list.hidden = true; });
  field.form.addEventListener("focusin", event => { if (event.target === field && list.childElementCount) list.hidden = false; });
  field.form.addEventListener("focusout", event => { if (!field.form.contains(event.relatedTarget)) list.hidden = true; });
  field.form.addEventListener("keydown", event => {
    if (event.key === "Escape") { field.focus(); list.hidden = true; }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || list.hidden) return;
    event.preventDefault();
    const places = [field, ...list.querySelectorAll("a")];
    const next = places.indexOf(document.activeElement) + step;
    places[Math.min(Math.max(next, 0), places.length - 1)].focus();
  });
  addEventListener("keydown", event => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    field.focus();
    field.select();
  });

  const results = document.getElementById("search-results");
  if (results) {
    const query = new URLSearchParams(location.search).get("q") ?? "";
    field.value = query;
    load().then(data => results.replaceChildren(...answer(query, data, 40)));
  }
})();
