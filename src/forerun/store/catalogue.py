"""The models that forerun knows by name, as data shipped in the package (spec 07 CAT-2).

Each entry pins its source by digest or commit, so that a name always means the same bytes.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forerun.base.errors import NotFoundError, RequestError, StoreError, UnsupportedError
from forerun.base.options import OptionValue, check_options
from forerun.base.shown import shown
from forerun.store.blobs import Digest
from forerun.store.fields import Fields
from forerun.store.names import ModelName

_FILE = Path(__file__).with_name("catalogue.json")
_FIELDS = ("name", "description", "license", "wheel", "hub", "parameters", "template", "draft")
_WHEEL_FIELDS = ("project", "version", "sha256", "bytes", "member", "member_bytes")
_HUB_FIELDS = ("repository", "commit", "files", "bytes")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a wheel of the user's package index."""

    project: str
    version: str
    digest: Digest  # of the wheel
    size_bytes: int  # of the wheel
    member: str  # the path of the GGUF file in the wheel
    member_size_bytes: int

    @property
    def requirement(self) -> str:
        """The wheel as pip is asked for it."""
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of a repository on hf.co. A catalogue pins all; a pulled name gives a revision."""

    repository: str
    revision: str
    files: tuple[str, ...] = ()  # empty: what `hub` selects
    size_bytes: int = 0  # of all files, 0 where it is not known before asking


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model of the catalogue."""

    name: ModelName
    description: str
    license: str
    source: WheelSource | HubSource
    parameters: dict[str, OptionValue]
    template: str | None = None  # where the source's own must not be used
    draft: str | None = None  # a draft head shipped in the package

    @property
    def download_bytes(self) -> int:
        """What a pull fetches."""
        return self.source.size_bytes


@cache
def catalogue() -> tuple[CatalogueEntry, ...]:
    """All entries, in the order of the file."""
    return parse_catalogue(_FILE.read_bytes(), "catalogue.json")


def find(name: ModelName) -> CatalogueEntry | None:
    """The entry of this name, None if there is none."""
    return next((entry for entry in catalogue() if entry.name == name), None)


def source_of(name: ModelName) -> CatalogueEntry | HubSource:
    """Where a pull of `name` gets it from. NotFoundError saying what there is instead."""
    if name.on_hub:
        return HubSource(name.repository, name.revision)
    entry = find(name)
    if entry is None:
        known = ", ".join(str(entry.name) for entry in catalogue())
        raise NotFoundError(
            f"model {shown(str(name))} not found: the catalogue has {known}, and hf.co/ORG/NAME "
            f"names any other repository of safetensors"
        )
    return entry


def parse_catalogue(data: bytes, where: str) -> tuple[CatalogueEntry, ...]:
    """Entries from JSON, strictly: unknown and missing fields are errors."""
    listed = Fields.parse(b'{"entries":' + data + b"}", where, unique=True)
    return tuple(_entry(fields) for fields in listed.list_of_fields("entries"))


def _entry(fields: Fields) -> CatalogueEntry:
    fields.only(_FIELDS)
    try:
        name = ModelName.parse(fields.text("name"))
        stated = fields.fields("parameters").values
        parameters = check_options(dict(stated))
    except (RequestError, UnsupportedError) as reason:
        raise StoreError(f"{fields.where}: {reason}") from None
    return CatalogueEntry(
        name=name,
        description=fields.text("description"),
        license=fields.text("license"),
        source=_source(fields),
        parameters=parameters,
        template=fields.optional_text("template") or None,
        draft=fields.optional_text("draft") or None,
    )


def _source(entry: Fields) -> WheelSource | HubSource:
    if ("wheel" in entry.values) == ("hub" in entry.values):
        raise entry.error(f"{entry.where}: name one source, wheel or hub")
    if "wheel" in entry.values:
        return _wheel(entry.fields("wheel"))
    hub = entry.fields("hub")
    hub.only(_HUB_FIELDS)
    return HubSource(
        hub.text("repository"), hub.text("commit"), hub.texts("files"), hub.count("bytes")
    )


def _wheel(fields: Fields) -> WheelSource:
    fields.only(_WHEEL_FIELDS)
    try:
        digest = Digest(fields.text("sha256"))
    except RequestError:
        raise fields.wrong("sha256", "64 hex digits") from None
    return WheelSource(
        project=fields.text("project"),
        version=fields.text("version"),
        digest=digest,
        size_bytes=fields.count("bytes"),
        member=fields.text("member"),
        member_size_bytes=fields.count("member_bytes"),
    )
