"""Writes a self-contained HTML page: its frame and its style."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

import fieldwise
from fieldwise.config.errors import FieldwiseError
from fieldwise.config.files import whole_file


def write_page(out: Path, title: str, parts: Sequence[str], command: Sequence[str]) -> Path:
    """Writes the parts that are not empty, and a footer with the command that makes the page again."""
    remake = f"Make this page again: <code>{escape(shlex.join(command))}</code>"
    footer = f"<footer>fieldwise {escape(fieldwise.__version__)}. {remake}</footer>"
    body = "\n".join(filter(None, [*parts, footer]))
    try:
        with whole_file(out) as file:
            page = PAGE.format(title=escape(title), style=STYLE, body=body)
            file.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise FieldwiseError(f"cannot write the report: {error.strerror} ({out})") from None
    return out


def figure(head: str, svg: str, caption: str) -> str:
    """A picture with its heading and its caption."""
    return f'<figure>{head}<div class="scroll">{svg}</div><figcaption>{caption}</figcaption></figure>'


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fieldwise: {title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: #23272e; font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 40px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 36px 0 10px; }
p { max-width: 46rem; margin: 8px 0; overflow-wrap: anywhere; }
.summary { font-size: 1.06rem; }
.scroll { overflow-x: auto; background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid #edf0f3; }
th:first-child { text-align: left; }
tbody th { font-weight: 600; position: sticky; left: 0; background: #fff; max-width: 15rem; overflow: hidden;
  text-overflow: ellipsis; }
thead th { font-size: .86rem; color: #545b66; font-weight: 600; vertical-align: bottom; }
tbody tr:last-child > * { border-bottom: 0; }
.best { background: #e3f3ea; font-weight: 700; }
tbody th span { color: #8a4b00; font-weight: 400; }
.note { font-size: .9rem; color: #545b66; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; font-size: .9rem; }
dt { font-weight: 600; }
dd { margin: 0; color: #3d444e; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 0 24px; }
.pair.wide { grid-template-columns: minmax(0, 1fr); }
figure { margin: 0 0 20px; min-width: 0; }
figure .scroll { padding: 10px; }
svg { display: block; height: auto; width: 100%; max-width: 600px; margin: 0 auto; }
.wide svg { max-width: none; min-width: 760px; }
figcaption { font-size: .9rem; color: #3d444e; margin: 8px 2px 0; max-width: 46rem; overflow-wrap: anywhere; }
details { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; margin: 8px 0; padding: 8px 14px; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: .86rem; }
code { font-size: .9em; background: #eceff3; padding: 1px 5px; border-radius: 4px; overflow-wrap: anywhere; }
footer { margin-top: 40px; font-size: .9rem; color: #545b66; }
@media (max-width: 560px) {
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: 6px; }
  th, td { padding: 7px 9px; }
  tbody th { max-width: 9rem; }
  tbody th span { display: block; }
}
@media print { body { background: #fff; } .scroll { overflow: visible; } }
"""
