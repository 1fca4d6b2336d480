"use strict";
const seconds = 4;
async function look() {
  let isLost = false;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const news = new DOMParser().parseFromString(await answer.text(), "text/html");
    const here = document.querySelector("main");
    const there = news.querySelector("main");
    if (answer.ok && there && here.innerHTML !== there.innerHTML) {
      here.replaceWith(there);
      document.title = news.title;
    }
  } catch {
    isLost = true;
  }
  document.getElementById("lost").hidden = !isLost;
}
setInterval(() => { if (!document.hidden) look(); }, seconds * 1000);
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
