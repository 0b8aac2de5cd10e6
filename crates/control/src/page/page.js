// Reads this page again each second, and changes only what differs: focus, selection and scrolling stay.
"use strict";
(() => {
  const status = document.getElementById("status"), pause = document.getElementById("pause");
  let paused = false, busy = false;

  const morph = (old, now) => {
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) { old.replaceWith(now); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== now.data) old.data = now.data; return; }
    // Most of a page is as it was: the browser compares a whole subtree faster than this loop does.
    if (old.isEqualNode(now)) return;
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes])
      // A reader has opened these.
      if (!now.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    const before = [...old.childNodes], after = [...now.childNodes];
    after.forEach((child, index) => (index < before.length ? morph(before[index], child) : old.append(child)));
    before.slice(after.length).forEach((child) => child.remove());
  };

  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  const read = async () => {
    if (paused || busy || document.hidden) return;
    busy = true;
    try {
      const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error((await answer.text()).trim());
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      morph(document.getElementById("main"), page.getElementById("main"));
      say("Live: read again each second.");
    } catch (error) {
      say(error instanceof TypeError || error.name === "TimeoutError" ? "The daemon does not answer: these numbers are old." : error.message);
    } finally { busy = false; }
  };

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
