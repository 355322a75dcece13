"""The style sheet of the report's page: light, dark and paper, without anything from outside."""

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2024;--muted:#626b75;--rule:#d9dde2;--soft:#f4f6f8;--a:#2b62a8;
--b:#b4551a;--warn:#8a4b00;--warn-soft:#fff5e0;--a-rgb:43,98,168;--b-rgb:200,95,30}
@media (prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e4e7ea;--muted:#98a2ad;--rule:#343a42;--soft:#1e2329;
--a:#7fb0ee;--b:#eb9a5e;--warn:#f0b860;--warn-soft:#33290f;--a-rgb:90,140,215;--b-rgb:215,115,50}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:78rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:2.2rem}
h1,h2,h3,h4{line-height:1.25;font-weight:600;margin:0}
h1{font-size:1.7rem;letter-spacing:-.01em}h2{font-size:1.35rem;margin-top:2.8rem}
h3{font-size:1.15rem;margin-top:2.6rem;padding-top:1rem;border-top:1px solid var(--rule)}
h4{font-size:.95rem;margin:1.2rem 0 .4rem}
p{margin:.5rem 0;max-width:52rem}a{color:var(--a)}
.muted,small{color:var(--muted)}small{font-size:.8em;font-weight:400}
nav{margin:.8rem 0;line-height:1.9}nav a{margin-right:.9rem;white-space:nowrap}
.scroll{overflow-x:auto;margin:.8rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted);padding-bottom:.4rem;font-size:.87rem}
caption span{display:block;position:sticky;left:0;max-width:min(52rem,calc(100vw - 2rem))}
th,td{padding:.35rem .7rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--rule)}
th{font-weight:600}thead>tr>*{border-bottom:1.5px solid var(--ink);vertical-align:bottom}
th[scope=row],.text{text-align:left}td{white-space:nowrap}td.code,td.text{white-space:normal}
th[scope=row] small{display:block}
tbody tr:last-child>*{border-bottom:1.5px solid var(--ink)}
.headline{width:100%;font-size:.93rem}.headline th,.headline td{padding-left:.4rem;padding-right:.4rem}
.headline th[scope=row]{position:sticky;left:0;background:var(--paper);min-width:8.5rem}
.headline td small{display:block}
.headline .best{background:var(--soft)}
.sign{color:var(--muted);padding-right:.15em}
.ours::after{content:" \\2020";color:var(--muted);font-weight:400}
.bad{color:var(--warn)}
.warn{background:var(--warn-soft);border-left:3px solid var(--warn);padding:.5rem .9rem;margin:.8rem 0;max-width:60rem}
.warn ul{margin:.2rem 0;padding-left:1.2rem}
details{border-bottom:1px solid var(--rule)}
details>summary{cursor:pointer;padding:.45rem 0;font-weight:500}
summary small{margin-left:.4rem}
details>:last-child{margin-bottom:1rem}
.tiles{display:flex;flex-wrap:wrap;gap:1.2rem 1.6rem;align-items:flex-start}
figure{margin:0;max-width:100%}figcaption{font-size:.85rem;margin-bottom:.2rem}
.tiles.small{gap:.7rem .8rem}.tiles.small figcaption{font-size:.75rem;margin:.2rem 0 0;text-align:center}
.tiles.small figure{width:5.6rem;text-align:center}
svg{max-width:100%;height:auto}svg text{font:10px system-ui,sans-serif;fill:var(--muted)}
.axis,.grid,.guide,.line{fill:none}.axis{stroke:var(--muted);stroke-width:1}.grid{stroke:var(--rule);stroke-width:.6}
.guide{stroke:var(--muted);stroke-dasharray:3 3}.line{stroke-width:1.6;stroke-linejoin:round}
.line.a{stroke:var(--a)}.line.b{stroke:var(--b)}.dot.a{fill:var(--a)}
.area.a{fill:rgba(var(--a-rgb),.35);stroke:var(--a);stroke-width:.8}
.pixels{image-rendering:pixelated;max-width:100%;height:auto;background:#fff}
.confusion td,.confusion th{padding:.15rem .35rem;border:0;text-align:right;font-size:.8rem;min-width:2rem}
.confusion tbody tr:last-child>*,.confusion thead>tr>*{border:0}
.confusion .hit{background:rgba(var(--a-rgb),calc(.08 + .42*var(--s)))}
.confusion .miss{background:rgba(var(--b-rgb),calc(.55*var(--s)))}
.confusion td:empty{background:none}
.bar{display:block;height:.45rem;background:var(--a);margin-top:.45rem;min-width:1px}
code,.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.82em;overflow-wrap:anywhere}
td.code{text-align:left;max-width:46rem}
footer{margin-top:3rem;padding-bottom:3rem;color:var(--muted);font-size:.87rem}
@media (max-width:600px){main,header,footer{padding-left:.9rem;padding-right:.9rem}body{font-size:14px}
th,td{padding:.3rem .5rem}.headline th[scope=row]{min-width:6.5rem;max-width:8rem;overflow-wrap:anywhere}}
@page{size:landscape;margin:12mm}
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--muted:#555;--rule:#ccc;--soft:#f2f2f2;--a:#1f4e8c;
--b:#a04a10;--warn:#7a4000;--warn-soft:#fff8ea}body{font-size:9pt}main,header,footer{max-width:none;padding:0}
nav{display:none}h3{break-after:avoid}table,figure{break-inside:avoid}.scroll{overflow:visible}
.headline th,.headline td{padding:.2rem .3rem}details:not([open]){display:none}}
"""
