// Reads this page again each second, and changes only what differs: focus, selection and scrolling stay.
"use strict";
(() => {
  const status = document.getElementById("status"), pause = document.getElementById("pause");
  let paused = false, busy = false, again = false;

  const morph = (old, now) => {
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) { old.replaceWith(now); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== now.data) old.data = now.data; return; }
    // Most of a page is as it was: the browser compares a whole subtree faster than this loop does.
    if (old.isEqualNode(now)) return;
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes])
      // A reader has opened these.
      if (!now.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    children(old, now);
  };

  // An element with a key is that port's, wherever it stands: the focus stays on the link that a reader has chosen.
  const key = (node) => node.dataset?.key || node.id || undefined;

  const children = (old, now) => {
    const after = [...now.childNodes], keys = new Set(after.map(key));
    let at = old.firstChild;
    const leave = () => { const left = at; at = at.nextSibling; return left; };
    for (const child of after) {
      while (at && key(at) && !keys.has(key(at))) leave().remove();
      if (at && key(at) === key(child)) { morph(leave(), child); continue; }
      // Only the element that is new or has moved is put in: one that is moved in the document loses the focus.
      const moved = key(child) && [...old.children].find((one) => key(one) === key(child));
      old.insertBefore(moved || child, at);
      if (moved) morph(moved, child);
    }
    while (at) leave().remove();
  };

  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  // `chosen`: a reader has chosen what to see, and sees it paused, too.
  const read = async (chosen) => {
    if (busy) { again ||= chosen === true; return; }
    if (chosen !== true && (paused || document.hidden)) return;
    busy = true;
    try {
      const answer = await fetch(location.pathname + location.search, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error((await answer.text()).trim());
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const focus = document.activeElement;
      morph(document.getElementById("main"), page.getElementById("main"));
      // A row that another order has moved keeps the focus.
      if (document.activeElement !== focus && focus.isConnected) focus.focus({ preventScroll: true });
      if (!paused) say("Live: read again each second.");
    } catch (error) {
      say(error instanceof TypeError || error.name === "TimeoutError" ? "The daemon does not answer: these numbers are old." : error.message);
    } finally {
      busy = false;
      if (again) { again = false; read(true); }
    }
  };

  // What a reader chooses is the address's query: without this script the browser follows it by itself.
  const choose = (query, how) => { history[how](null, "", query || location.pathname); read(true); };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-view]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    choose(link.search, "pushState");
  });
  const filter = (form, how) => {
    const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    choose("?" + fields, how);
  };
  document.addEventListener("submit", (event) => { event.preventDefault(); filter(event.target, "pushState"); });
  document.addEventListener("input", (event) => { if (event.target.form) filter(event.target.form, "replaceState"); });
  addEventListener("popstate", () => {
    const input = document.getElementById("filter");
    if (input) input.value = new URLSearchParams(location.search).get("q") ?? "";
    read(true);
  });

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    say(paused ? "Paused." : "Live: read again each second.");
    read();
  });
  document.addEventListener("visibilitychange", read);
  setInterval(read, 1000);
  read();
})();
