"""The folder one predicts from: weights, config, schema, encoder, calibration, metrics; no pickle in it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import fieldwise
from fieldwise.bundle.calibration import Calibration
from fieldwise.bundle.members import Blend, JoinedEncoder, JoinedSchema, Member, blend_weights
from fieldwise.bundle.scoring import Saved, Scorer
from fieldwise.config.documents import read_json, read_toml
from fieldwise.config.errors import BundleError, FieldwiseError
from fieldwise.config.files import whole_folder
from fieldwise.config.settings import Config, config_from
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.schema import Layout, Schema

if TYPE_CHECKING:
    from fieldwise.nn.model import Model
    from fieldwise.nn.trees import Trees

FORMAT = 1
# Where the members of a blend lie in its bundle.
MEMBERS = "members"
# The files that are read of a bundle, beside those of its encoder.
OWN = (
    "config.toml",
    "schema.toml",
    "calibration.json",
    "metrics.json",
    "blend.json",
    "weights.safetensors",
    "trees.ubj",
)


@dataclass(frozen=True)
class Bundle:
    """What a bundle folder holds, opened; that of a blend has the bundles of its members in `members`."""

    path: Path
    config: Config
    schema: Schema
    encoder: Encoder | JoinedEncoder
    model: Scorer
    calibration: Calibration
    metrics: dict[str, Any]
    members: tuple[Bundle, ...] = ()

    @property
    def own_encoder(self) -> Encoder:
        """The encoder of a model that is no blend of models with several."""
        if not isinstance(self.encoder, Encoder):
            raise _several_encoders(self.path)
        return self.encoder

    def encoded(self, folder: Path) -> bool:
        """Whether the encoder of a prepared folder or a bundle is this one's, so that their ids mean the same."""
        if self.members:
            return all(member.encoded(folder) for member in self.members)
        if folder == self.path:
            return True
        # Some of what makes ids is in the schema alone, such as the number of hash buckets.
        ours, theirs = ((s.fields, s.history) for s in (self.schema, Schema.load(folder / "schema.toml")))
        return ours == theirs and _contents(self.path / "encoder") == _contents(folder / "encoder")


def write(
    out: Path,
    config: Config,
    sources: Mapping[str, Path],
    model: Saved,
    calibration: Calibration,
    metrics: dict[str, Any],
) -> None:
    """Writes the bundle of a trained model; `sources` are the files and folders that it takes over, by their names."""
    with whole_folder(out, "bundle.json", force=True) as work:
        model.save(work / model.file)
        for name, source in sources.items():
            (work / name).parent.mkdir(exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, work / name)
        (work / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        write_json(work / "calibration.json", calibration.to_json())
        write_json(work / "metrics.json", metrics)
        _seal(work)


def rewrite(origin: Bundle, out: Path, force: bool = False) -> None:
    """Writes an opened bundle anew, its histories as they are now; all else is the same in every byte."""
    with whole_folder(out, "bundle.json", force) as work:
        shutil.copytree(origin.path, work, dirs_exist_ok=True)
        for own in origin.members or (origin,):
            folder = work / own.path.relative_to(origin.path)
            if own.own_encoder.history is not None:
                own.own_encoder.history.save(folder / "encoder")
                _seal(folder)
        _seal(work)


def _seal(work: Path) -> None:
    """Writes bundle.json, with a digest of each file that is there."""
    # Imported where it is needed: a bundle can be opened for serving where torch is not installed.
    import torch

    own = (path for path in work.rglob("*") if path.is_file() and _is_own(path.relative_to(work)))
    files = sorted(path for path in own if path != work / "bundle.json")
    facts = {
        "format": FORMAT,
        "fieldwise": fieldwise.__version__,
        "torch": str(torch.__version__),
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


def load(path: Path) -> Bundle:
    """Opens the bundle of a run or a bundle folder, after checking that every file is whole."""
    folder = checked(path)
    if "serving" in read_json(folder / "bundle.json"):
        way_out = "name the run or the bundle that it was exported from"
        raise BundleError(f"the folder was exported to serve from and has no weights for torch; {way_out} ({folder})")
    members: tuple[Bundle, ...] = ()
    schema: Schema
    encoder: Encoder | JoinedEncoder
    model: Scorer
    with read_with_care(folder):
        config = load_config(folder)
        if (folder / Blend.file).is_file():
            members = tuple(load(member) for member in member_folders(folder))
            schema, encoder, model = joined(members)
        else:
            schema = Schema.load(folder / "schema.toml")
            encoder = Encoder.load(folder / "encoder", schema)
            model = build_model(config, encoder.layout)
        model.load(folder / model.file)
    facts = read_json(folder / "metrics.json")
    return Bundle(folder, config, schema, encoder, model, load_calibration(folder), facts, members)


@contextmanager
def read_with_care(folder: Path) -> Iterator[None]:
    """Whatever a library says of a bundle's files, in one line: they may be a stranger's, and hold anything."""
    try:
        yield
    except BundleError:
        raise
    except FieldwiseError as error:
        raise BundleError(f"{error} ({folder})") from error
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        raise BundleError(f"the bundle is damaged: {reason} ({folder})") from error


def load_config(folder: Path) -> Config:
    """The config of a bundle folder."""
    return config_from(read_toml(folder / "config.toml"), str(folder))


def load_calibration(folder: Path) -> Calibration:
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
    """Where the members lie in the bundle of a blend; each is a whole bundle."""
    return [f"{MEMBERS}/{number}" for number in range(count)]


def joined(members: Sequence[Bundle]) -> tuple[Schema, Encoder | JoinedEncoder, Blend]:
    """Schema, encoder and plain blend of several models; members with the same encoder read the same ids."""
    alike = [next(other for other in members if other.encoded(member.path)) for member in members]
    encoders = list(dict.fromkeys(one.own_encoder for one in alike))
    encoder = JoinedEncoder(encoders) if len(encoders) > 1 else encoders[0]
    columns = encoder.columns if isinstance(encoder, JoinedEncoder) else [slice(None)]
    parts = [
        Member(member.model, columns[encoders.index(one.own_encoder)], member.calibration.offset)
        for member, one in zip(members, alike, strict=True)
    ]
    return JoinedSchema.of([member.schema for member in members]), encoder, Blend(parts)


def load_encoder(path: Path) -> Encoder:
    """The encoder of a run or a bundle folder, without its model."""
    folder = checked(path)
    if (folder / Blend.file).is_file():
        raise _several_encoders(folder)
    return Encoder.load(folder / "encoder", Schema.load(folder / "schema.toml"))


def checked(path: Path) -> Path:
    """The bundle folder of a run or a bundle, every file of it whole."""
    folder = locate(path)
    for name, digest in digests(folder).items():
        file = folder / name
        if not file.is_file() or digest_of(file) != digest:
            state = "changed or cut off" if file.is_file() else "missing"
            raise BundleError(f"the bundle's {name} is {state}; write it again or copy it anew ({folder})")
    return folder


def digests(folder: Path) -> dict[str, str]:
    """What bundle.json says that each file of the folder is; none of them lies outside, and none is left out."""
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
    from fieldwise.models import build

    return build(config.model, layout, config.options)


def _several_encoders(folder: Path) -> BundleError:
    return BundleError(f"a blend has the encoders of its members; name one of them, such as {folder / MEMBERS / '0'}")


def _is_own(file: Path) -> bool:
    """Whether a bundle answers for a file; members answer for theirs, and it for their bundle.json."""
    return file.parts[0] != MEMBERS or file.name == "bundle.json"


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
