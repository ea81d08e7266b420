"use strict";
// Everything works without this script. With it, what is live in a page is replaced when there is a newer picture, times can be
// shown in local time, and light or dark can be chosen.
(() => {
  const kept = {
    get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* the choice lasts for this page */ } },
  };
  const root = document.documentElement;
  if (kept.get("theme")) root.dataset.theme = kept.get("theme");

  let isLocal = kept.get("times") === "local";
  const pad = (number, length = 2) => String(number).padStart(length, "0");
  const local = (at) => {
    const offset = -at.getTimezoneOffset(), sign = offset < 0 ? "-" : "+", size = Math.abs(offset);
    return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:` +
      `${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}${sign}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
  };
  const showTimes = (within) => {
    for (const element of within.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const utc = element.dateTime.replace("T", " ");
      element.textContent = isLocal ? local(at) : utc;
      element.title = isLocal ? utc : local(at);
    }
  };

  // What was focused and scrolled in a part stays so in the part that takes its place.
  const replace = (old, fresh, active) => {
    const places = (part) => [part, ...part.querySelectorAll("a[href], [tabindex]")];
    const scrolled = places(old).map((place) => place.scrollLeft);
    const same = (place, at) => (active.href ? place.href === active.href : at === places(old).indexOf(active));
    const focused = active && places(fresh).find(same);
    old.replaceWith(fresh);
    places(fresh).forEach((place, at) => { if (scrolled[at]) place.scrollLeft = scrolled[at]; });
    focused?.focus({ preventScroll: true });
  };

  const say = (what) => { for (const note of document.querySelectorAll("#following p")) note.hidden = note.dataset.when !== what; };

  // A picture that is on its way may be older than the change that is heard of meanwhile: then it is asked for once more.
  let isPaused = false, isBusy = false, isBehind = false, isOvertaken = false;
  const refresh = async () => {
    if (isBusy) { isOvertaken = true; return; }
    if (isPaused || document.hidden || !document.querySelector("main [data-live]")) { isBehind = true; return; }
    isBusy = true;
    isBehind = isOvertaken = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected || answer.status === 401) { isBehind = true; say("logged-out"); return; }
      if (!answer.ok) { isBehind = answer.status >= 429; if (answer.status >= 500) say("lost"); return; }
      say("");
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(old.id);
        const selection = getSelection();
        const active = old.contains(document.activeElement) ? document.activeElement : null;
        const isRead = old.querySelector("input:checked") || (active && active.matches("input, select, textarea, button")) ||
          (selection && !selection.isCollapsed && selection.containsNode(old, true));
        if (!fresh || isRead) continue;
        showTimes(fresh);
        if (fresh.innerHTML !== old.innerHTML) replace(old, document.adoptNode(fresh), active);
      }
    } catch { isBehind = true; say("lost"); } finally {
      isBusy = false;
      if (isOvertaken) refresh();
    }
  };

  // A browser connects again after a stream that ended, and never after one that was refused: too many streams, a proxy without
  // its console, a session that is over. So this connects again, later each time, and asks for the page as well.
  const RETRY_FIRST_MS = 2000, RETRY_MAX_MS = 30000;
  let stream = null, retry = null, retryMs = RETRY_FIRST_MS;
  const follow = () => {
    stream = new EventSource("/events");
    stream.addEventListener("open", () => { retryMs = RETRY_FIRST_MS; if (isBehind) refresh(); });
    stream.addEventListener("changed", refresh);
    stream.addEventListener("error", () => {
      isBehind = true;
      retry ??= setTimeout(again, retryMs * (1 + Math.random()));
      retryMs = Math.min(2 * retryMs, RETRY_MAX_MS);
    });
  };
  const again = () => {
    retry = null;
    if (stream.readyState === EventSource.CLOSED) follow();
    if (isBehind) refresh();
  };
  const leave = () => { clearTimeout(retry); retry = null; stream.close(); };

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".switches")?.removeAttribute("hidden");
    showTimes(document);
    const times = document.getElementById("switch-times");
    times?.setAttribute("aria-pressed", String(isLocal));
    times?.addEventListener("click", () => {
      isLocal = !isLocal;
      kept.set("times", isLocal ? "local" : "utc");
      times.setAttribute("aria-pressed", String(isLocal));
      showTimes(document);
    });
    document.getElementById("switch-theme")?.addEventListener("click", () => {
      const isDark = getComputedStyle(root).colorScheme === "dark";
      root.dataset.theme = isDark ? "light" : "dark";
      kept.set("theme", root.dataset.theme);
    });
    const updates = document.getElementById("switch-updates");
    updates?.addEventListener("click", () => {
      isPaused = !isPaused;
      updates.setAttribute("aria-pressed", String(isPaused));
      if (!isPaused) refresh();
    });
    if (!document.querySelector("main [data-live]")) { if (updates) updates.hidden = true; return; }
    follow();
    document.addEventListener("visibilitychange", () => { if (!document.hidden && isBehind) refresh(); });
    addEventListener("pagehide", leave);
    addEventListener("pageshow", (event) => { if (event.persisted) { isBehind = true; follow(); } });
  });
})();
