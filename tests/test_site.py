"""The docs site without building it: its menu, its generated pages, and the notebooks that it shows."""

import dataclasses
import json
from pathlib import Path

import pytest

import fieldwise
from fieldwise import models
from fieldwise.config.settings import TrainSettings
from tools import notebooks, reference

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def leaves(item):
    if isinstance(item, str):
        return [item]
    inner = item.values() if isinstance(item, dict) else item
    return [leaf for each in inner for leaf in leaves(each)]


@pytest.fixture(scope="module")
def pages():
    return reference.pages()


def test_the_menu_names_every_page_once(pages):
    yaml = pytest.importorskip("yaml")
    menu = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    written = {page for page in written if not page.startswith("lab/")}  # these are found by tools/site.py
    made = {f"reference/{name}" for name in pages} | {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    assert sorted(menu) == sorted(written | made | {"contributing.md", "changelog.md"})


def test_the_reference_has_every_name_command_setting_option_and_path(pages):
    assert all(f".{name}\n" in pages["python.md"] for name in fieldwise.__all__)
    assert all(f"`train.{one.name}`" in pages["settings.md"] for one in dataclasses.fields(TrainSettings))
    assert all(f"\n## {name}\n" in pages["models.md"] for name in models.registry())
    for command in ("prepare", "train", "serve", "history update", "abtest report"):
        assert f"\n## {command}\n" in pages["commands.md"]
    for path in ("POST /predict", "POST /rank", "GET /metrics"):
        assert f"\n## {path}\n" in pages["http.md"]


def test_a_setting_without_a_meaning_is_noticed(monkeypatch):
    known = reference.meanings_of_settings()
    monkeypatch.setattr(reference, "meanings_of_settings", lambda: {k: v for k, v in known.items() if k != "clip"})
    with pytest.raises(KeyError, match="clip"):
        reference.settings()


@pytest.fixture
def own_models():
    """Forgets the models that a test registers."""
    before = set(models.MODELS)
    yield
    for name in set(models.MODELS) - before:
        del models.MODELS[name]


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path):
    made = notebooks.run(path)
    kept = [cell["outputs"] for cell in notebooks.code_of(path)]
    kinds = [[output["output_type"] for output in outputs] for outputs in made]
    assert kinds == [[output["output_type"] for output in outputs] for outputs in kept], "run `make notebooks`"
    assert "image/png" in json.dumps(made)
