"""Every command and program in the README, and every example, runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fieldwise import cli
from fieldwise.data.schema import Schema

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands_of(page):
    lines = [line for text in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in text.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.strip()]


COMMANDS = commands_of(README)


def test_make_targets_of_the_readme_exist_and_run_fieldwise():
    targets = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert targets == ["demo", "docs"]
    for target, expected in (
        ("demo", "fieldwise demo --out demo"),
        ("docs", "mkdocs build --strict"),
        ("test", "pytest"),
    ):
        plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        assert expected in plan.stdout
    assert (ROOT / ".ci" / "run").read_text().strip().endswith("make test")


def run_all(commands, capsys):
    """How many commands ended well; the first that does not is named."""
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "fieldwise"
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == 0, f"{command}: {capsys.readouterr().err}"
    return len(commands)


def test_every_command_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [command for command in COMMANDS if not command.startswith("make ")]
    assert run_all(commands, capsys) >= 4
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 5001


DOCS = ROOT / "docs"
PAGES = {
    page.relative_to(DOCS).as_posix(): commands_of(page.read_text(encoding="utf-8"))
    for page in sorted(DOCS.rglob("*.md"))
    if page.parent.name != "lab"
}
# These take what start.md has left.
AFTER_START = ["history.md", "compare.md", *(page for page in PAGES if page.startswith("howto/"))]


def test_every_command_of_the_start_and_of_what_follows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for page in ["start.md", *AFTER_START]:
        assert run_all(PAGES[page], capsys) >= (page != "howto/index.md"), page
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    "page", [name for name, commands in PAGES.items() if commands and name not in ("start.md", *AFTER_START)]
)
def test_every_command_of_the_docs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_all(PAGES[page], capsys) >= 1


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_every_program_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert programs
    for text in programs:
        exec(compile(text, page, "exec"), {})


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples(path):
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def anchors_of(page):
    """The names that headings of a page have on the site and on a forge."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = [re.sub(r"[^\w\- ]", "", head.lower()).strip() for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {head.replace(" ", "-") for head in heads}


def test_links_of_the_docs_lead_somewhere():
    """`make docs` checks the site's; reference/ is made for it (tests/test_site.py)."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            target = page.parent / link if link else page
            if target.parent.name == "reference":
                continue
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors_of(target), f"{page.name}: {link}#{anchor}"


@pytest.mark.parametrize(("page", "fields"), [("data.md", [3, 1, 1, 3]), ("position.md", [2])])
def test_toml_of_the_docs_is_a_schema(page, fields):
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    assert [len(Schema.from_toml(text, page).fields) for text in blocks] == fields
