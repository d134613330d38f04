"""The style sheet of all pages."""

from fedlsg.simulations.report.drawing.colours import TEXT, WHITE, declarations

RULES = """
* { box-sizing: border-box; }
body { font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: var(--ink);
  background: var(--paper); margin: 0; overflow-wrap: break-word; -webkit-text-size-adjust: 100%; }
header, main, footer { max-width: 84rem; margin: 0 auto; padding: 0 1.5rem; }
p, pre, .files, figcaption { max-width: 50rem; }
header { padding-top: 2.5rem; }
footer { color: var(--dim); font-size: .875rem; padding-top: 1.5rem; padding-bottom: 3rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.6rem 0 .8rem; }
p { margin: .7rem 0; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 2px; }
.kind { color: var(--dim); font-size: .875rem; margin: 0 0 .3rem; }
.lead { color: var(--dim); margin: 0; }
.headline { font-size: 1.2rem; line-height: 1.45; font-weight: 600; margin: 1.1rem 0; }
.warning { border-left: 4px solid var(--alarm); padding: .6rem 1rem; background: var(--alert); }
.warning.caution { border-left-color: var(--warn); background: var(--limit); }
.advice { border-left: 4px solid var(--bar); padding: .6rem 1rem; background: var(--panel); }
.badge { display: inline-block; margin: .2rem 0 .6rem; padding: .15rem .8rem; border-radius: 1rem; font-weight: 600; }
.badge.good { color: var(--good); background: var(--fine); }
.badge.bad { color: var(--alarm); background: var(--alert); }
.badge.limited { color: var(--warn); background: var(--limit); }
.badge.good::before { content: "✓ "; }
.badge.bad::before { content: "✗ "; }
.badge.limited::before { content: "◐ "; }
.tiles { list-style: none; display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr)); gap: .8rem;
  max-width: calc(var(--cards) * 25rem);
  padding: 0; margin: 1.2rem 0; }
.tiles li { background: var(--panel); padding: .7rem 1rem .8rem; border-radius: .5rem; border-top: 4px solid var(--bar);
  overflow-wrap: anywhere; }
.tiles li.good { border-top-color: var(--good); }
.tiles li.bad { border-top-color: var(--alarm); }
.tiles li.limited { border-top-color: var(--warn); }
.tiles .name { display: block; color: var(--dim); font-size: .875rem; }
.tiles strong { display: block; font-size: 1.6rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles .bad strong { color: var(--alarm); }
.tiles .note { display: block; }
.meters { list-style: none; padding: 0; margin: 1.2rem 0; max-width: 50rem; display: grid; gap: .8rem; }
.meters li { display: grid; grid-template-columns: auto 1fr; gap: .1rem 1rem; align-items: baseline; }
.option { white-space: nowrap; }
.meters .name { font-weight: 600; white-space: nowrap; }
.meters .note { text-align: right; }
.meters progress { grid-column: 1 / -1; grid-row: 2; width: 100%; height: .7rem; accent-color: var(--link); }
.spark { display: block; width: 96px; height: 22px; }
.spark path { fill: none; stroke: var(--link); stroke-width: 1.6; stroke-linejoin: round; }
.note, figcaption, .files { color: var(--dim); font-size: .9rem; }
.verdict { font-weight: 600; }
nav ul, .files, .keys { list-style: none; padding: 0; margin: .8rem 0; display: flex; flex-wrap: wrap;
  gap: .3rem 1.2rem; }
nav { font-size: .9rem; }
.files { flex-direction: column; }
dl { display: grid; grid-template-columns: minmax(8rem, 11rem) 1fr; margin: .6rem 0; max-width: 62rem;
  border-top: 1px solid var(--rule); }
dt, dd { margin: 0; padding: .45rem 0; border-bottom: 1px solid var(--rule); min-width: 0; overflow-wrap: anywhere; }
dt { color: var(--dim); padding-right: 1rem; }
.scroll { position: relative; overflow-x: auto; margin: .9rem 0; background: linear-gradient(to right, var(--paper) 40%,
  transparent) 0 0 / 2rem
  100% no-repeat local, linear-gradient(to left, var(--paper) 40%, transparent) 100% 0 / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) 0 0 / .6rem 100% no-repeat, linear-gradient(to left,
  var(--shade),
  transparent) 100% 0 / .6rem 100% no-repeat; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { padding: .34rem .9rem .34rem 0; vertical-align: top; white-space: nowrap; text-align: right;
  border-bottom: 1px solid var(--rule); font-weight: 400; }
th:last-child, td:last-child { padding-right: .3rem; }
thead th { font-weight: 600; border-bottom: 2px solid var(--bar); }
.left, .group th { text-align: left; }
td.left { min-width: 3rem; }
td.left.long { white-space: normal; }
td.left:last-child:not(.curve) { min-width: 15rem; }
tr.group th { border-bottom: 0; padding-top: 1rem; font-weight: 600; }
tr.reference > * { background: var(--panel); }
tr.own > * { font-weight: 600; }
tr.no-epsilon > * { color: var(--warn); }
tr.dim > * { color: var(--dim); }
tr.alert > * { color: var(--alarm); font-weight: 600; }
table.tokens { width: 100%; }
table.tokens th, table.tokens td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.tokens th { width: 8rem; color: var(--dim); }
table.tokens .group > * { padding-top: 1rem; border-bottom: 0; }
.moved { border-bottom: 2px dotted var(--dim); }
.wrong { color: var(--alarm); text-decoration: line-through; }
tr.good > * { color: var(--good); }
.best { font-weight: 700; color: var(--good); }
.best::after { content: " ★"; font-size: .75em; vertical-align: .1em; }
.found { background: var(--fine); color: var(--good); font-weight: 600; border-radius: .2rem; padding: 0 .15rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
[hidden] { display: none !important; }
button, input { font: inherit; color: inherit; }
th button { background: none; border: 0; padding: 0; margin: 0; font-weight: inherit; cursor: pointer;
  white-space: nowrap; }
th button:hover { text-decoration: underline; }
.chosen td { vertical-align: top; }
th input[type=checkbox] { width: 1.1rem; height: 1.1rem; margin: 0 .45rem 0 0; vertical-align: -.2rem; }
th button::after { content: "↕"; color: var(--dim); font-size: .75em; margin-left: .25em; }
th[aria-sort=ascending] button::after { content: "↑"; color: var(--link); }
th[aria-sort=descending] button::after { content: "↓"; color: var(--link); }
.filter { margin: .9rem 0 -.4rem; }
.filter input { padding: .3rem .6rem; border: 1px solid var(--bar); border-radius: .3rem; background: var(--paper);
  width: min(18rem, 100%); }
.slider { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem .8rem; }
.slider input { width: min(24rem, 100%); accent-color: var(--link); }
.slider output { font-weight: 600; }
.slides .slider ~ .slide > h3 { display: none; }
.gallery td, .gallery th { border: 0; text-align: left; padding: .2rem .5rem .7rem 0; }
.gallery img { width: clamp(160px, 18vw, var(--side)); height: auto; image-rendering: pixelated; margin-bottom: .2rem;
  max-width: none; }
.gallery span { display: block; white-space: normal; width: 0; min-width: 100%; }
.gallery .good { color: var(--good); font-weight: 600; }
.gallery .bad { color: var(--alarm); font-weight: 600; }
.versions { list-style: none; margin: 1.2rem 0; padding: 0; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.versions li { display: grid; gap: .8rem; grid-template-columns: repeat(var(--across), minmax(0, 1fr)); margin: 0;
  padding: .9rem; border: 1px solid var(--bar); border-radius: .4rem; font-size: .875rem; break-inside: avoid; }
.versions li > :first-child { grid-column: 1 / -1; width: calc((100% - 1.6rem) / 3); justify-self: center; }
.versions img { width: 100%; max-width: var(--side); image-rendering: pixelated; margin-bottom: .2rem; }
.versions b, .versions span { display: block; overflow-wrap: anywhere; }
.versions span { color: var(--dim); }
.versions .good { color: var(--good); font-weight: 600; }
.versions .bad { color: var(--alarm); font-weight: 600; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin: 0 .5em 0 1px;
  box-shadow: 0 0 0 1px #ffffff; }
figure { margin: 1.8rem 0; break-inside: avoid; }
figcaption { margin-top: .5rem; }
.panels { display: grid; gap: 1rem 1.2rem; }
.two { grid-template-columns: 1fr 1fr; }
.two > :first-child:nth-last-child(odd) { grid-column: 1 / -1; }
.one { max-width: 46rem; }
.three { grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); }
.panel { min-width: 0; display: grid; grid-template-rows: subgrid; grid-row: span 3; row-gap: 0; }
.panel > * { min-width: 0; }
.panel > .title { grid-row: 1; }
.panel > .keys { grid-row: 2; }
.panel > .canvas, .panel > .still { grid-row: 3; }
.panel .title { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: center; gap: .2rem .8rem;
  font-weight: 600; margin: 0 0 .3rem; max-width: none; }
.controls { display: flex; gap: .1rem; font-weight: 400; margin-right: -.5rem; }
.controls button { border: 1px solid transparent; background: none; color: var(--dim); border-radius: .3rem; padding: 0 .5rem;
  font-size: .8rem; line-height: 1.6; min-width: 1.8rem; min-height: 1.5rem; cursor: pointer; }
.controls button:hover { border-color: var(--bar); color: inherit; }
.controls [aria-pressed=true], .controls [aria-pressed=true]:hover { background: var(--link); color: var(--paper); border-color: var(--link); }
.canvas { position: relative; overflow: hidden; }
.canvas canvas:focus-visible { outline-offset: -3px; }
.still { display: block; width: min(100%, calc(1.15 * var(--wide))); height: auto; overflow: visible; }
.still * { stroke-linejoin: round; stroke-linecap: butt; }
.live .still { display: none; }
.live .panels, .live .keys { background: none; color: inherit; }
.keys button { background: none; border: 1px solid transparent; border-radius: .3rem; padding: .1rem .3rem;
  cursor: pointer; text-align: left; }
.keys button:hover { border-color: var(--bar); }
.keys [aria-pressed=false] { color: var(--dim); text-decoration: line-through; }
.keys [aria-pressed=false] svg { opacity: .35; }
.panels image { image-rendering: pixelated; }
.keys { font-size: .875rem; margin: 0 0 .7rem; }
.keys svg { width: 1.9rem; height: .9rem; vertical-align: -.1rem; margin-right: .4rem; overflow: visible; }
img { max-width: 100%; height: auto; display: block; background: #ffffff; }
code, pre { font: .86rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: var(--panel); padding: .8rem 1rem; margin: .6rem 0; white-space: pre-wrap;
  overflow-wrap: anywhere; }
pre span { white-space: nowrap; } /* no line ends within -c */
summary { cursor: pointer; }
summary { margin: 1.6rem 0 .6rem; }
summary h2 { display: inline; margin-left: .3rem; }
main:not(:has([id^=tick-]:checked)) .chosen { display: none; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
@media (min-width: 40.01rem) {
  details dl { grid-template-columns: 11.5rem 1fr 11.5rem 1fr; font-size: .95rem; max-width: none; }
  details dd { padding-right: 1rem; }
}
@media (min-width: 70rem) { /* single charts next to each other */
  section:has(> figure.chart > .one ~ *) { display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.6rem; }
  section:has(> figure.chart > .one ~ *) > * { grid-column: 1 / -1; min-width: 0; }
  section > figure.chart:has(> .one) { grid-column: auto; }
}
@media (max-width: 60rem) { .cards { font-size: .85rem; } .cards th, .cards td { padding-right: .5rem; min-width: 0; } }
@media (max-width: 40rem) {
  header { padding-top: 1.4rem; }
  header, main, footer { padding-left: 1rem; padding-right: 1rem; }
  h1 { font-size: 1.45rem; }
  .headline { font-size: 1.1rem; }
  .one { --words: 1.15; }
  .two, .three { grid-template-columns: 1fr; }
  .cards, .cards tbody, .cards tbody th, .cards caption { display: block; }
  .cards tbody tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.1rem; }
  .cards tbody th, .cards td.long { grid-column: 1 / -1; }
  .cards .spark { float: right; }
  .cards .best::after { content: none; }
  .cards thead tr { display: flex; flex-wrap: wrap; }
  .cards thead th { border: 0; padding: .1rem .8rem .1rem 0; }
  .cards tbody tr { border-bottom: 2px solid var(--bar); padding: .4rem 0; }
  .cards tbody th { text-align: left; font-weight: 600; border: 0; padding: .1rem 0; white-space: normal; }
  .cards td, .cards td:last-child { display: flow-root; border: 0; padding: .1rem 0; white-space: normal; min-width: 0;
    text-align: right; }
  .cards td::before { content: attr(data-label); float: left; color: var(--dim); font-weight: 400; margin-right: 1rem; }
  .data th, td.left:last-child { white-space: normal; min-width: 0; }
  img { max-width: none; }
  .gallery thead { display: none; }
  .gallery, .gallery tbody { display: block; }
  .gallery tr { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem; padding: .8rem 0; border-bottom: 1px solid var(--bar); }
  .gallery td { padding: 0; min-width: 0; }
  .gallery td::before { content: attr(data-label); display: block; font-weight: 600; margin-bottom: .2rem; }
  .gallery img { width: 100%; max-width: var(--side); }
  .meters li { grid-template-columns: 1fr; }
  .meters .note { grid-row: 3; text-align: left; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .tiles li:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .tiles li { padding: .5rem .7rem .6rem; }
  .tiles strong { font-size: 1.25rem; }
  dl { grid-template-columns: 1fr; }
  dt { border-bottom: 0; padding-bottom: 0; }
  dd { padding-top: .1rem; }
  table.tokens th { width: 6rem; }
}
@page { margin: 1.6cm; }
@media print {
  html { font-size: 10pt; }
  header, main, footer { max-width: none; padding: 0; }
  nav, .controls, .filter, .slider, .canvas { display: none; }
  .live .still { display: block; }
  .live .panels, .live .keys { background: #ffffff; }
  .slide[hidden] { display: block !important; }
  details::details-content { content-visibility: visible; height: auto; }
  summary { list-style: none; }
  h2, h3, caption, thead, .keys { break-after: avoid; }
  tr, .warning, dt, dd { break-inside: avoid; }
  .scroll { overflow: visible; background: none; }
  table { font-size: 7.5pt; }
  th, td { padding-right: .5rem; white-space: normal; }
  details dt, details dd { padding: .15rem .5rem .15rem 0; }
  .dot { print-color-adjust: exact; }
}
"""
CSS = (
    f":root {{ color-scheme: light dark; {declarations(False)} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {declarations(True)} }} }}\n"
    f".panels, .keys {{ background: {WHITE}; color: {TEXT['ink'][False]}; }}{RULES}"
)
