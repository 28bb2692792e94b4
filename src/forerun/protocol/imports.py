"""What is asked of an importer process, and the progress it reports.

One request goes in on standard input as a JSON line; events come out on standard output as JSON
lines, the last one `Imported` or `Failed`. Standard input closing means that the parent is gone.
"""

from forerun.protocol.events import Failed
from forerun.protocol.requests import JsonValue, Struct


class PullRequest(Struct, tag="pull"):
    """Fetch a catalogue or hf.co model and register it under `name`."""

    name: str


class CreateRequest(Struct, tag="create"):
    """Build `name` from the text of a Modelfile; relative paths start at `folder`.

    `quantize` is the type that the target's weights get, `quantize_draft` the draft's, by any name
    that `base.quantisation` knows; "" for what they come as.
    """

    name: str
    modelfile: str
    folder: str
    quantize: str = ""
    quantize_draft: str = ""


class SavedMessage(Struct):
    """One turn that is put before every chat."""

    role: str
    content: str


class ComposeRequest(Struct, tag="compose"):
    """Build `name` as a Modelfile of these values would, which no text of one can always hold.

    `source` is what its FROM would say, `draft` its DRAFT; relative paths start at `folder`. None
    says nothing. `quantize` and `quantize_draft` as in `CreateRequest`.
    """

    name: str
    source: str
    folder: str
    draft: str | None = None
    parameters: dict[str, JsonValue] = {}
    template: str | None = None
    system: str | None = None
    licenses: list[str] = []
    messages: list[SavedMessage] = []
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    quantize: str = ""
    quantize_draft: str = ""


ImportRequest = PullRequest | CreateRequest | ComposeRequest


class ImportStatus(Struct, tag="status"):
    """What is going on. With `total`, `completed` of that many bytes are done."""

    status: str
    digest: str | None = None
    completed: int | None = None
    total: int | None = None


class Imported(Struct, tag="imported"):
    name: str
    digest: str  # of the manifest


ImportEvent = ImportStatus | Imported | Failed
