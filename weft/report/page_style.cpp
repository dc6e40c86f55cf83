#include "weft/report/page_style.h"

namespace weft {

// s0 is dense, s1 to s7 are others. They were searched for: any two differ by 24 or more in CIE Lab
// with normal vision and as simulated without red, green or blue cones (Machado 2009), and each has a
// contrast of 3:1 with the paper. p0 to p6 are the parts of a step: products in one hue, what sparse
// ones cost in another, the rest grey.
const char* page_style() {
  return R"css(
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2128; --quiet: #57606a; --rule: #d8dee4; --grid: #e8ecf0;
  --raised: #f6f8fa; --link: #0550ae; --good: #116b34;
  --s0: #57606a; --s1: #3b70fd; --s2: #7d2b0e; --s3: #08a662; --s4: #d06cc7; --s5: #a3931c;
  --s6: #3100e1; --s7: #6b009b;
  --p0: #08434f; --p1: #1d7385; --p2: #4f9bad; --p3: #a3500d; --p4: #cf8230; --p5: #57606a;
  --p6: #98a1aa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1318; --ink: #e4e8ec; --quiet: #9aa5b1; --rule: #2d343d; --grid: #222931;
    --raised: #171c23; --link: #79b8ff; --good: #5fd08a;
    --s0: #a9b3be; --s1: #5bb0ff; --s2: #fe8204; --s3: #abf6c2; --s4: #b444a8; --s5: #eee382;
    --s6: #6e67f6; --s7: #d83a2c;
    --p0: #8ed7e6; --p1: #3ea7bb; --p2: #1f6b7a; --p3: #f0a057; --p4: #9c5f22; --p5: #98a3ae;
    --p6: #56606b;
  }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --ink: #000000; --quiet: #444444; --rule: #bbbbbb; --grid: #e4e4e4;
    --raised: #ffffff; --link: #000000; --good: #000000;
    --s0: #555555; --s1: #3b70fd; --s2: #7d2b0e; --s3: #08a662; --s4: #d06cc7; --s5: #a3931c;
    --s6: #3100e1; --s7: #6b009b;
    --p0: #08434f; --p1: #1d7385; --p2: #4f9bad; --p3: #a3500d; --p4: #cf8230; --p5: #57606a;
    --p6: #98a1aa;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif;
}
header, main, footer { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 6px; }
h2 { font-size: 1.2rem; margin: 40px 0 8px; padding-top: 12px; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 0 0 6px; }
p { margin: 6px 0; max-width: 46em; }
a { color: var(--link); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 12px 0 0; padding: 0; }
.quiet, .note, figcaption, caption { color: var(--quiet); }
.note, figcaption { font-size: .85rem; }
.charts {
  display: grid; gap: 34px 40px; margin-top: 14px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr));
}
figure { margin: 0; min-width: 0; }
figure.chart > svg { display: block; width: 100%; height: auto; max-width: 620px; }
svg text { font-size: 11.5px; fill: var(--ink); font-family: inherit; }
svg text.tick, svg tspan.tick { fill: var(--quiet); }
svg text.name { fill: var(--ink); }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--quiet); stroke-width: 1; }
svg .line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
svg .bar { stroke: currentColor; stroke-width: 1.4; }
svg .band { fill: currentColor; fill-opacity: .13; }
svg circle { fill: currentColor; stroke: var(--paper); stroke-width: .6; }
svg .part { stroke: var(--paper); stroke-width: .7; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.s3 { color: var(--s3); } .s4 { color: var(--s4); } .s5 { color: var(--s5); }
.s6 { color: var(--s6); } .s7 { color: var(--s7); }
.p0 { fill: var(--p0); } .p1 { fill: var(--p1); } .p2 { fill: var(--p2); } .p3 { fill: var(--p3); }
.p4 { fill: var(--p4); } .p5 { fill: var(--p5); } .p6 { fill: var(--p6); }
.swatch { flex: none; vertical-align: middle; margin-right: 7px; }
.legend {
  list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 4px 0; padding: 0;
  font-size: .85rem;
}
.legend li { display: flex; align-items: center; }
.legend b { font-weight: 600; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; max-width: 100%; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible {
  outline: 2px solid var(--link); outline-offset: 2px;
}
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; margin: 8px 0; }
caption { text-align: left; padding-bottom: 4px; }
th, td { padding: 4px 14px 4px 0; text-align: left; vertical-align: top; white-space: nowrap; }
th.n, td.n { text-align: right; }
thead th { border-bottom: 1px solid var(--rule); color: var(--quiet); font-weight: 600; }
tbody th { font-weight: 600; }
tbody td, tbody th { border-bottom: 1px solid var(--grid); }
td.wrap { white-space: normal; min-width: 18em; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--link); font-size: .9rem; padding: 4px 0; }
.chart details .scroll { max-height: 320px; overflow: auto; }
.sparse { color: var(--good); font-weight: 600; }
.masks { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 18px 22px; margin: 12px 0; }
.masks figure { width: 200px; }
.masks img {
  display: block; image-rendering: pixelated; max-width: 100%; background: var(--raised);
  border: 1px solid var(--rule);
}
.masks figcaption { overflow-wrap: anywhere; line-height: 1.35; margin-top: 5px; }
.masks figcaption b { color: var(--ink); }
pre {
  background: var(--raised); border: 1px solid var(--rule); border-radius: 5px; margin: 4px 0 16px;
  padding: 9px 11px; font-size: .82rem; white-space: pre-wrap; overflow-wrap: anywhere;
}
pre code { user-select: all; }
dt { font-weight: 600; font-size: .9rem; overflow-wrap: anywhere; }
dd { margin: 0; }
footer { margin-top: 44px; padding-bottom: 32px; color: var(--quiet); font-size: .85rem; }
@media (max-width: 480px) {
  header, main, footer { padding-left: 14px; padding-right: 14px; }
  svg text { font-size: 13px; }
}
@media print {
  body { font-size: 10pt; }
  nav, summary { display: none; }
  figure, tr, pre { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll, .chart details .scroll { overflow: visible; max-height: none; }
  .charts { grid-template-columns: 1fr 1fr; gap: 18px 24px; }
  th, td { white-space: normal; padding-right: 8px; }
}
)css";
}

}  // namespace weft
