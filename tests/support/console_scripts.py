"""What tests of the console run in the browser, as somebody who looks closely, or who means harm."""

from __future__ import annotations

CONTRASTS = """() => {
  const part = (one) => one <= 0.04 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((one) => part(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (one) => {
    for (; one; one = one.parentElement) {
      const found = getComputedStyle(one).backgroundColor;
      if (found !== "rgba(0, 0, 0, 0)") return found;
    }
    return "rgb(255, 255, 255)";
  };
  const kinds = "th, td, p, a, dt, dd, h1, h2, h3, li, pre, code, small, span, strong, label, button";
  const shown = [...document.querySelectorAll(kinds)];
  return shown.filter((one) => one.innerText && !one.disabled).map((one) => {
    const [low, high] = [light(getComputedStyle(one).color), light(paper(one))].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), one.innerText.slice(0, 30)];
  }).filter(([ratio]) => ratio < 4.5);
}"""
"""Texts that are hard to read, by WCAG 2.1 AA."""

CUT = """() => {
  const top = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.documentElement, found = [];
  const seen = (one) => one.checkVisibility() && !one.matches("thead, thead *, .skip");
  const here = (kinds) => [...top.querySelectorAll(kinds)].filter(seen);
  const check = (what, kinds, isWrong) => here(kinds).filter(isWrong)
    .forEach((one) => found.push(`${what}: ${one.outerHTML.slice(0, 120)}`));
  const lines = (one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return new Set([...range.getClientRects()].filter((box) => box.width).map((box) => Math.round(box.top))).size;
  };
  check("out of sight", "*", (one) => {
    const { left, right } = one.getBoundingClientRect();
    return left < -1 || right > innerWidth + 1;
  });
  check("to be scrolled", ".wide", (one) => one.scrollWidth > one.clientWidth + 1);
  check("its label is broken", "td", (one) => {
    const { content, height, lineHeight } = getComputedStyle(one, "::before");
    return content !== "none" && parseFloat(height) > 1.6 * parseFloat(lineHeight);
  });
  check("broken", "td.n, button.id, span.id, .tiles strong", (one) => lines(one) > 1);
  const pressed = here("button, input")
    .map((one) => [one, one.getBoundingClientRect(), one.closest("dialog .buttons")]);
  check("overlapped", "button, input", (one) => {
    const a = one.getBoundingClientRect(), bar = one.closest("dialog .buttons");  // what scrolls goes below the bar
    return pressed.some(([other, b, its]) => other !== one && its === bar
      && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom);
  });
  if (top.scrollWidth > top.clientWidth) found.push("the page is wider than its window");
  return found;
}"""
"""What is out of sight at the side, or broken where it is one word, or lies upon another."""

NAMELESS = """() => {
  const named = (one) => one.getAttribute("aria-label") || document.getElementById(one.getAttribute("aria-labelledby"));
  const kinds = "button, input, dialog, section, [role=region], [role=img]";
  return [...document.querySelectorAll(kinds)].filter((one) =>
    !named(one) && !one.labels?.length && !(one.localName === "button" && one.textContent.trim())
  ).map((one) => one.outerHTML.slice(0, 80));
}"""
"""What a screen reader has no name for."""

ACT = """async ([path, action]) => {
  const token = sessionStorage.getItem("xaqueue.token");
  const headers = {"x-xaqueue": "1", "content-type": "application/json", authorization: `Bearer ${token}`};
  return (await fetch(path, {method: "POST", body: JSON.stringify(action), headers})).json();
}"""
"""An action that the page does not offer."""

FOREIGN = """() => {
  for (const [name, value] of [["textContent", "hacked=1"], ["src", "data:text/javascript,hacked=1"]])
    document.body.append(Object.assign(document.createElement("script"), {[name]: value}));
  const markup = `<img src=x onerror="hacked=1"><a id=a href="javascript:hacked=1">a</a>`;
  document.body.insertAdjacentHTML("beforeend", markup);
  document.getElementById("a").click();
}"""
"""Scripts in the page that are not the page's."""

FORGED = """
<form id=form method=post enctype=text/plain target=frame action="%(url)sapi/decide"><input name='%(json)s'></form>
<iframe name=frame></iframe><iframe src="%(url)s"></iframe>
<script>
document.getElementById("form").submit();
const body = '%(json)s', headers = {"x-xaqueue": "1", "content-type": "application/json"};
window.tried = Promise.all([
  fetch("%(url)sapi/decide", {method: "POST", mode: "no-cors", body}),
  fetch("%(url)sapi/decide", {method: "POST", body, headers}),
  fetch("%(url)sapi/overview"),
  fetch("%(url)sapi/overview", {mode: "no-cors"}),
].map((one) => one.then((answer) => answer.type === "opaque" ? "opaque" : answer.text(), () => "refused")));
</script>"""
"""Another site's page, which asks for an action and for data, and frames the console."""
