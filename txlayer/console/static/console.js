"use strict";
// Everything works without this script. With it, what is live in a page is kept current, times can be shown in local time, and
// light or dark can be chosen.
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

  // A page asks for itself again after each answer; more seldom while there is none.
  const REFRESH_MS = 2000, REFRESH_MAX_MS = 30000;
  let isPaused = false, isBusy = false, timer = null, waitMs = REFRESH_MS;
  const refresh = async () => {
    clearTimeout(timer);
    if (isBusy || isPaused || document.hidden || !document.querySelector("main [data-live]")) return;
    isBusy = true;
    let isWell = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected || answer.status === 401) { say("logged-out"); return; }
      if (!answer.ok) { if (answer.status >= 500) say("lost"); return; }
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
      isWell = true;
    } catch { say("lost"); } finally {
      isBusy = false;
      waitMs = isWell ? REFRESH_MS : Math.min(2 * waitMs, REFRESH_MAX_MS);
      timer = setTimeout(refresh, waitMs);
    }
  };

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
    timer = setTimeout(refresh, REFRESH_MS);
    document.addEventListener("visibilitychange", refresh);
    addEventListener("pageshow", (event) => { if (event.persisted) refresh(); });
  });
})();
