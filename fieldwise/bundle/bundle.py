"""The folder that predictions need: weights, config, schema, encoder, calibration, metrics. It holds no pickle."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import NDArray

import fieldwise
from fieldwise.bundle.calibration import Calibration
from fieldwise.bundle.card import FILE as CARD
from fieldwise.bundle.card import write_card
from fieldwise.bundle.members import Blend, JoinedEncoder, JoinedSchema, M, Member, blend_weights, parts_of
from fieldwise.bundle.scoring import Saved, Trained, reads_ranks, score
from fieldwise.config.documents import read_json, read_toml
from fieldwise.config.errors import BundleError, FieldwiseError
from fieldwise.config.files import linked, whole_folder
from fieldwise.config.options import arguments
from fieldwise.config.settings import Config, config_from
from fieldwise.data.encode import lifetimes
from fieldwise.data.encode.encoder import PAST_FILES, Encoder
from fieldwise.data.schema import Layout, Schema
from fieldwise.nn.lines import Lines
from fieldwise.nn.tree_models import TREES

if TYPE_CHECKING:
    from fieldwise.nn.model import Model
    from fieldwise.nn.trees import Trees

FORMAT = 1
# Where the members of a blend lie in its bundle.
MEMBERS = "members"
# The files of a bundle that are read, beside those of its encoder.
OWN = (
    "config.toml",
    "schema.toml",
    "calibration.json",
    "metrics.json",
    "blend.json",
    "weights.safetensors",
    "trees.ubj.gz",
    "trees.ubj",
    "symmetric.safetensors",
)


@dataclass(frozen=True)
class Opened(Generic[M]):
    """An opened bundle folder; if it is a blend, `members` are the bundles of its members.

    `blend` weights the members' models, or holds the only model. The models run in torch and XGBoost (`load`), or in
    ONNX Runtime (a server); the code from ids to probabilities is the same.
    """

    path: Path
    config: Config
    schema: Schema
    encoder: Encoder | JoinedEncoder
    blend: Blend[M]
    calibration: Calibration
    metrics: dict[str, Any]
    members: tuple[Opened[M], ...] = ()

    @property
    def model(self) -> M | Blend[M]:
        return self.blend if self.members else self.blend.members[0].model

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
        """Encoded rows (n, C) -> logits (n,). A network takes them with and without ranks."""
        return score(self.model, ids, columns=self.layout.columns)

    @property
    def layout(self) -> Layout:
        """The layout of what the model reads of the encoder's ids: only trees read ranks."""
        whole = self.encoder.layout
        return whole if reads_ranks(self.model) else whole.without_ranks

    def probabilities(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        """Encoded rows (n, C) -> calibrated probabilities (n,)."""
        return self.calibration.probabilities(self.logits(ids))

    @property
    def own_encoder(self) -> Encoder:
        """The encoder; refused for a blend whose members have different ones."""
        if not isinstance(self.encoder, Encoder):
            raise _several_encoders(self.path)
        return self.encoder

    def encoded(self, folder: Path) -> bool:
        """Whether a prepared folder or a bundle has this bundle's encoder, so their ids mean the same."""
        if self.members:
            return all(member.encoded(folder) for member in self.members)
        if folder == self.path:
            return True
        # Some settings that determine ids are only in the schema, such as the number of hash buckets.
        ours, theirs = ((s.fields, s.history) for s in (self.schema, Schema.load(folder / "schema.toml")))
        return ours == theirs and _contents(self.path / "encoder") == _contents(folder / "encoder")


# A bundle whose model can be saved, moved to a device and trained further.
Bundle = Opened[Trained]
# Names and digests of the files that make an encoder.
Digests = tuple[tuple[str, str], ...]


def write(
    out: Path,
    config: Config,
    sources: Mapping[str, Path],
    model: Saved,
    calibration: Calibration,
    metrics: dict[str, Any],
    date: str = "",
) -> None:
    """Writes the bundle of a trained model; `sources` are files and folders to copy, by their names in the bundle.

    `date` is the day of the training, for the model card.
    """
    with whole_folder(out, "bundle.json", force=True) as work:
        model.save(work / model.file)
        for name, source in sources.items():
            (work / name).parent.mkdir(exist_ok=True)
            # Second names, not copies: an encoder with histories is most of a bundle, and many runs have the same.
            if source.is_dir():
                shutil.copytree(source, work / name, copy_function=linked)
            else:
                linked(source, work / name)
        (work / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        write_json(work / "calibration.json", calibration.to_json())
        write_json(work / "metrics.json", metrics)
        members = [work / name for name in sources if name.startswith(f"{MEMBERS}/")]
        write_card(work, [Schema.load(own / "schema.toml") for own in members or [work]], date)
        _seal(work)


def rewrite(origin: Bundle, out: Path, force: bool = False) -> None:
    """Writes a copy of an opened bundle with its histories as they are now; all other files stay as they are."""
    with whole_folder(out, "bundle.json", force) as work:
        copy_files(origin.path, work)
        for own in origin.members or (origin,):
            folder = work / own.path.relative_to(origin.path)
            if own.own_encoder.counts_rows:
                for name in PAST_FILES:  # second names: who writes into one changes both
                    (folder / "encoder" / name).unlink(missing_ok=True)
                own.own_encoder.save_past(folder / "encoder")
                _seal(folder)
        _seal(work)


def copy_files(source: Path, out: Path) -> None:
    """The files of a bundle or a run in another folder, by second names where they are never written into."""

    def copied(one: str, other: str) -> None:
        kept = Path(one).name in (CARD, "bundle.json")
        shutil.copyfile(one, other) if kept else linked(one, other)

    shutil.copytree(source, out, copy_function=copied, dirs_exist_ok=True)


def _seal(work: Path) -> None:
    """Writes bundle.json, with a digest of each file that is there."""
    own = (path for path in work.rglob("*") if path.is_file() and _is_own(path.relative_to(work)))
    files = sorted(path for path in own if path != work / "bundle.json")
    facts = {
        "format": FORMAT,
        "fieldwise": fieldwise.__version__,
        "torch": version("torch"),
        "files": {path.relative_to(work).as_posix(): digest_of(path) for path in files},
    }
    write_json(work / "bundle.json", facts)


def locate(path: Path) -> Path:
    """The bundle folder of a run or a bundle."""
    for candidate in (path, path / "bundle"):
        if (candidate / "bundle.json").is_file():
            return candidate
    if (path / "config.toml").is_file():
        raise BundleError(f"the run has not finished; go on with `fieldwise train ... --resume` ({path})")
    raise BundleError(f"expected a run or a bundle folder, found neither config.toml nor bundle.json ({path})")


def load(path: Path, only_scores: bool = False) -> Bundle:
    """Opens the bundle of a run or a bundle folder, after checking every file's digest. For who `only_scores` LR is its
    numbers alone, without torch."""
    folder = checked(path)
    if "serving" in read_json(folder / "bundle.json"):
        way_out = "give the run or the bundle that it was exported from"
        raise BundleError(f"the folder was exported to serve from and has no weights for torch; {way_out} ({folder})")
    return opened(folder, _scoring if only_scores else _trained, {})


def opened(folder: Path, model_of: Callable[[Path, Config, Layout], M], encoders: dict[Digests, Encoder]) -> Opened[M]:
    """Opens a checked bundle folder; `model_of` opens its models, and members with the same files share an encoder."""
    members: tuple[Opened[M], ...] = ()
    schema: Schema
    encoder: Encoder | JoinedEncoder
    with read_with_care(folder):
        config = config_from(read_toml(folder / "config.toml"), str(folder))
        if (folder / Blend.file).is_file():
            members = tuple(opened(checked(member), model_of, encoders) for member in member_folders(folder))
            schema, encoder, blend = joined(members)
            blend.load(folder / Blend.file)
        else:
            schema = Schema.load(folder / "schema.toml")
            own = encoder = _encoder(folder, schema, encoders)
            blend = Blend([Member(model_of(folder, config, own.layout), own, slice(None))])
    facts = read_json(folder / "metrics.json")
    return Opened(folder, config, schema, encoder, blend, _calibration(folder), facts, members)


def _trained(folder: Path, config: Config, layout: Layout) -> Trained:
    """The model of a bundle folder, in torch or XGBoost."""
    model = build_model(config, layout)
    model.load(folder / model.file)
    return model


def _scoring(folder: Path, config: Config, layout: Layout) -> Trained:
    """As `_trained`; but LR, whoever trained it, without torch."""
    if config.model != "lr":
        return _trained(folder, config, layout)
    model = Lines(layout)
    model.load(folder / model.file)
    return model


def _encoder(folder: Path, schema: Schema, known: dict[Digests, Encoder]) -> Encoder:
    """The encoder of a bundle folder; one that was loaded from the same files is reused."""
    files = digests(folder)
    key = tuple((name, files[name]) for name in sorted(files) if name == "schema.toml" or name.startswith("encoder/"))
    if key not in known:
        known[key] = Encoder.load(folder / "encoder", schema)
    return known[key]


@contextmanager
def read_with_care(folder: Path) -> Iterator[None]:
    """Turns any error of a library that reads a bundle into one line: a stranger's files may hold anything."""
    try:
        yield
    except BundleError:
        raise
    except FieldwiseError as error:
        raise BundleError(f"{error} ({folder})") from error
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        raise BundleError(f"the bundle is damaged: {reason} ({folder})") from error


def _calibration(folder: Path) -> Calibration:
    """The calibration of a bundle folder."""
    try:
        return Calibration.from_json(read_json(folder / "calibration.json"))
    except ValueError as error:
        raise BundleError(f"the calibration is damaged: {error} ({folder})") from None


def member_folders(folder: Path) -> list[Path]:
    """The folders of a blend's members, one for each weight."""
    found = [folder / name for name in member_names(len(blend_weights(folder / Blend.file)[0]))]
    for member in found:
        if (member / Blend.file).is_file():
            raise BundleError(f"a member of a blend is a model, found a blend ({member})")
    return found


def member_names(count: int) -> list[str]:
    """Folders of the members inside the bundle of a blend; each is a complete bundle."""
    return [f"{MEMBERS}/{number}" for number in range(count)]


def joined(members: Sequence[Opened[M]]) -> tuple[Schema, Encoder | JoinedEncoder, Blend[M]]:
    """Schema, encoder and unweighted blend of several models; members with the same encoder read the same ids."""
    alike = [next(o for o in members if o.encoder is own.encoder or o.encoded(own.path)) for own in members]
    encoders = list(dict.fromkeys(one.own_encoder for one in alike))
    encoder = JoinedEncoder(encoders) if len(encoders) > 1 else encoders[0]
    columns = dict(parts_of(encoder))
    parts = [
        Member(member.blend.members[0].model, one.own_encoder, columns[one.own_encoder], member.calibration.offset)
        for member, one in zip(members, alike, strict=True)
    ]
    return JoinedSchema.of([member.schema for member in members]), encoder, Blend(parts)


def load_encoder(path: Path) -> Encoder:
    """The encoder of a run or a bundle folder, without its model, to continue it."""
    folder = checked(path)
    if (folder / Blend.file).is_file():
        raise _several_encoders(folder)
    return Encoder.load(folder / "encoder", Schema.load(folder / "schema.toml"), lifetimes=True)


def checked(path: Path) -> Path:
    """The bundle folder of a run or a bundle, after checking every file's digest."""
    folder = locate(path)
    for name, digest in digests(folder).items():
        file = folder / name
        if not file.is_file() or digest_of(file) != digest:
            state = "changed or cut off" if file.is_file() else "missing"
            raise BundleError(f"the bundle's {name} is {state}; write or copy it again ({folder})")
    return folder


def digests(folder: Path) -> dict[str, str]:
    """The digests of all files in bundle.json; refused if a name leaves the folder or a file has no digest."""
    facts = read_json(folder / "bundle.json")
    found = facts.get("format")
    if found != FORMAT:
        way_out = "use the version that wrote it"
        raise BundleError(f"expected a bundle of format {FORMAT}, found {str(found)[:40]}; {way_out} ({folder})")
    files = facts.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise BundleError(f"expected a digest of each file in bundle.json, found another form ({folder})")
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or parts[0] == "/" or ".." in parts or not name.isprintable():
            raise BundleError(f"a bundle's files lie in its folder, found {name[:100]!r} in bundle.json ({folder})")
    encoder = (file for file in (folder / "encoder").glob("*") if file.is_file())
    for file in (*(folder / name for name in OWN), *encoder):
        if file.is_file() and file.relative_to(folder).as_posix() not in files:
            raise BundleError(f"bundle.json has no digest of {file.relative_to(folder)}; write it again ({folder})")
    return files


def build_model(config: Config, layout: Layout) -> Model | Trees:
    """The model that a config describes, over these fields."""
    if config.model in TREES:
        # Not by `models`, which loads torch: that takes longer than to predict with trees.
        return TREES[config.model](layout, **arguments(TREES[config.model], config.options))
    from fieldwise.models import build

    return build(config.model, layout, config.options)


def _several_encoders(folder: Path) -> BundleError:
    return BundleError(f"a blend has the encoders of its members; name one of them, such as {folder / MEMBERS / '0'}")


def _is_own(file: Path) -> bool:
    """Whether a bundle lists a file's digest; a member lists its own files, and the blend its bundle.json. The model
    card is for people, who may edit it."""
    return file.name != CARD and (file.parts[0] != MEMBERS or file.name == "bundle.json")


def _contents(folder: Path) -> dict[str, bytes]:
    """The files that say what ids mean."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != lifetimes.FILE}


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
