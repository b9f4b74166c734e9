"""What the docs site has besides the pages of docs/: a hook of mkdocs (mkdocs.yml).

Reference pages that tools/reference.py wrote, the notebooks of examples/, CONTRIBUTING and CHANGELOG, and a page for
each source file that a page links to: the site is complete without the repository and without a network.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "build" / "reference"
NOTEBOOKS = ROOT / "examples" / "notebooks"
# Files of the root that have a page of their own.
RENAMED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown"}
SHIM = re.compile(r"https?://[^\"'\s]+/iframe-worker/shim")
FOREIGN = re.compile(r"<(?:script|img|link|iframe|source|video)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
MERMAID = re.compile(r"```mermaid\n.*?```", re.DOTALL)  # Material draws it with a script from the network
PICTURE = "![From a csv row to a probability](figures/walk.svg)"
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")


def on_config(config: Any) -> Any:
    notes = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs" / "lab").glob("*.md"))]
    config.nav = [item | {"Lab notes": notes} if "Lab notes" in item else item for item in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    for path in sorted(REFERENCE.glob("*.md")):
        files.append(File.generated(config, f"reference/{path.name}", content=path.read_text(encoding="utf-8")))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, RENAMED[name], content=LINK.sub(_from_root, text)))
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for uri, content in notebook_files(path).items():
            files.append(File.generated(config, uri, content=content))
    for target in sorted(linked_sources(files)):
        files.append(File.generated(config, f"source/{target}.md", content=source_page(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    markdown = MERMAID.sub(PICTURE, markdown)
    return LINK.sub(lambda found: found[1] + inside(found[2], page.file.src_uri) + found[3], markdown)


def on_post_build(config: Any) -> None:
    """Gives pages our own script where Material would take one from the network; refuses all other such files."""
    site = Path(config.site_dir)
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        own = posixpath.relpath("file-worker.js", path.relative_to(site).parent.as_posix())
        text = SHIM.sub(own, text)
        path.write_text(text, encoding="utf-8")
        if found := FOREIGN.search(text):
            raise PluginError(f"a page must not need the network, found {found[0]} ({path.relative_to(site)})")


def _from_root(found: re.Match[str]) -> str:
    """A link of a page of the root, as one of docs/."""
    target = found[2].removeprefix("docs/") if found[2].startswith("docs/") else f"../{found[2]}"
    return found[1] + target + found[3]


def outside(link: str, page: str) -> str:
    """The path from the root that a link of a page of docs/ leads to; empty if it stays in docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return "" if path.startswith("docs/") else path


def inside(link: str, page: str) -> str:
    """A link of a page as the site has it: what lies outside of docs/ has a page too."""
    target = outside(link, page)
    return posixpath.relpath(page_of(target), posixpath.dirname(page) or ".") if target else link


def page_of(target: str) -> str:
    """The page of a file outside of docs/."""
    if target.endswith(".ipynb"):
        return f"notebooks/{Path(target).stem}.md"
    return RENAMED.get(target, f"source/{target}.md")


def linked_sources(files: Files) -> set[str]:
    """The files and folders outside of docs/ that pages link to."""
    pages = [file for file in files if file.src_uri.endswith(".md")]
    found = {outside(link, page.src_uri) for page in pages for _, link, _ in LINK.findall(page.content_string)}
    return {target for target in found if target and page_of(target).startswith("source/")}


def source_page(target: str) -> str:
    """A source file with its colours, or the names in a folder."""
    path = ROOT / target
    head = f"---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n# {target}\n\n"
    if path.is_dir():
        return head + "\n".join(f"- {each.name}" for each in sorted(path.iterdir()) if each.name[0] not in "._") + "\n"
    text = path.read_text(encoding="utf-8")
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"


def notebook_files(path: Path) -> dict[str, str | bytes]:
    """The page of a notebook as it was last run, and its pictures, by their places in the site."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    files: dict[str, str | bytes] = {}
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(LINK.sub(lambda found: f"{found[1]}../../examples/notebooks/{found[2]}{found[3]}", text))
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(files)}.png"
                files[f"notebooks/{name}"] = base64.b64decode(data["image/png"])
                parts.append(f"![plot]({name})")
            else:
                printed = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```text\n{printed.rstrip()}\n```")
    return {f"notebooks/{path.stem}.md": "\n\n".join(parts) + "\n", **files}
