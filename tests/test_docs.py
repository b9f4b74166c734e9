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
    assert targets == ["demo", "test"]
    for target, expected in (("demo", "fieldwise demo --out demo"), ("test", "pytest")):
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
    assert run_all(commands, capsys) >= 8
    assert (tmp_path / "report.html").stat().st_size > 10_000


PAGES = {page.name: commands_of(page.read_text(encoding="utf-8")) for page in sorted((ROOT / "docs").glob("*.md"))}


@pytest.mark.parametrize("page", [name for name, commands in PAGES.items() if commands])
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


def test_links_of_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize(("page", "fields"), [("data.md", [3, 1, 1, 3]), ("position.md", [2])])
def test_toml_of_the_docs_is_a_schema(page, fields):
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    assert [len(Schema.from_toml(text, page).fields) for text in blocks] == fields
