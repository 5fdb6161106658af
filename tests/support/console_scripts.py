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
  const shown = [...document.querySelectorAll("th, td, p, a, dt, dd, h1, h2, button")];
  return shown.filter((one) => one.innerText && !one.disabled).map((one) => {
    const [low, high] = [light(getComputedStyle(one).color), light(paper(one))].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), one.innerText.slice(0, 30)];
  }).filter(([ratio]) => ratio < 4.5);
}"""
"""Texts that are hard to read, by WCAG 2.1 AA."""

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
