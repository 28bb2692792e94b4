"""The tokenizer of one model: what the text plane knows of its vocabulary."""

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Tokenizer as Library

from forerun.base.errors import LoadError, RequestError
from forerun.base.spans import Span
from forerun.tokenizer.decoding import SequenceDecoder, TokenDecoder, read_decoder
from forerun.tokenizer.files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    AddedToken,
    TokenizerFiles,
    added_tokens,
    decoder_entries,
    read_files,
)
from forerun.tokenizer.guarded import GuardedEncoder
from forerun.tokenizer.special import SpecialTokens, find_special_tokens


class Tokenizer:
    """Text to ids and ids to bytes, through the `tokenizers` library (spec 06 TOK).

    May be used from several threads at once.
    """

    special: SpecialTokens
    control_tokens: tuple[str, ...]
    control_ids: frozenset[int]
    vocab_size: int

    def __init__(
        self,
        library: Library,
        decoder: TokenDecoder,
        *,
        special: SpecialTokens,
        controls: Sequence[AddedToken],
    ) -> None:
        self.special = special
        self.control_tokens = tuple(token.content for token in controls)
        self.control_ids = frozenset(token.id for token in controls)
        self.vocab_size = max(library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._library = library
        self._decoder = decoder
        self._encoder = GuardedEncoder(library, controls)
        self._token_bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, files: Mapping[str, bytes], template_literals: str = "") -> "Tokenizer":
        """The tokenizer of a model's files, by their published names; tokenizer.json is required.

        `template_literals` is what the model's chat templates write themselves: added tokens that
        occur in it are control tokens. Raises LoadError naming file and value.
        """
        parsed = read_files(files)
        library = _load_library(parsed)
        tokens = added_tokens(parsed.tokenizer)
        _check_ids(library, tokens, parsed)
        return cls(
            library,
            read_decoder(parsed.tokenizer.get("decoder")),
            special=find_special_tokens(parsed, library),
            controls=_controls(tokens, parsed, template_literals),
        )

    def vocabulary(self) -> dict[str, int]:
        """The id of every token, as tokenizer.json spells it."""
        return self._library.get_vocab(with_added_tokens=True)

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset(self.special.eos_ids)

    def encode(self, spans: Sequence[Span]) -> list[int]:
        """The ids of the spans' joined text; control tokens only from trusted spans (TOK-2).

        Raises RequestError for text that is no Unicode (a lone surrogate).
        """
        for span in spans:
            _check_unicode(span.text)
        return self._encoder.encode(spans)

    def encode_prompt(self, spans: Sequence[Span]) -> list[int]:
        """As `encode`, with the BOS token in front if the model wants one, never twice (TOK-5)."""
        ids = self.encode(spans)
        bos = self.special.bos_id
        if self.special.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def token_bytes(self, token_id: int, *, control: bool = False) -> bytes:
        """The bytes of a token inside a sequence. Control tokens have none unless `control`.

        Ids outside the vocabulary (padding rows of an embedding) have none either.
        """
        if token_id in self.control_ids and not control:
            return b""
        data = self._token_bytes.get(token_id)
        if data is None:
            text = self._library.id_to_token(token_id)
            data = b"" if text is None else self._decoder.token_bytes(text, first=False)
            self._token_bytes[token_id] = data
        return data

    def token_text(self, token_id: int) -> str:
        """A token as people read it, control tokens included; half a character shows as U+FFFD."""
        return self.token_bytes(token_id, control=True).decode(errors="replace")

    def decode(self, ids: Iterable[int], *, control: bool = False) -> str:
        """The text of a whole sequence; equals the library's (TOK-3, with decoding's exception)."""
        stream = self.decode_stream(control=control)
        return b"".join(map(stream.push, ids)).decode(errors="replace")

    def decode_stream(self, *, control: bool = False) -> "TokenStream":
        """Decodes one sequence id by id, as `decode` does."""
        return TokenStream(self, self._decoder, control=control)

    def spelling(self, token_id: int) -> str | None:
        """How tokenizer.json spells a token; None outside the vocabulary."""
        return self._library.id_to_token(token_id)


class TokenStream:
    """The bytes of one sequence, id by id."""

    def __init__(self, tokenizer: Tokenizer, decoder: TokenDecoder, *, control: bool) -> None:
        self._tokenizer = tokenizer
        self._sequence = SequenceDecoder(decoder)
        self._control = control

    def push(self, token_id: int) -> bytes:
        if token_id in self._tokenizer.control_ids and not self._control:
            return b""
        text = self._tokenizer.spelling(token_id)
        return b"" if text is None else self._sequence.push(text)


def _load_library(files: TokenizerFiles) -> Library:
    try:
        return Library.from_buffer(files.definition)
    except Exception as error:  # the library raises nothing narrower
        raise LoadError(f"{TOKENIZER} cannot be read: {error}; import the model again") from error


def _check_ids(library: Library, tokens: Sequence[AddedToken], files: TokenizerFiles) -> None:
    """Ids that two places state must agree, or weights and ids no longer meet (TOK-1)."""
    for token in tokens:
        _check_id(library, token.content, token.id, TOKENIZER)
    where = f"{TOKENIZER_CONFIG} added_tokens_decoder"
    for entry in decoder_entries(files.tokenizer_config):
        _check_id(library, str(entry.get("content")), entry["id"], where)


def _check_id(library: Library, content: str, stated: object, where: str) -> None:
    actual = library.token_to_id(content)
    if actual != stated:
        raise LoadError(
            f"added token {content!r} has id {stated} in {where} and id {actual} in {TOKENIZER}'s "
            "vocabulary; import the model from a source whose tokenizer was not renumbered"
        )


def _controls(
    tokens: Sequence[AddedToken], files: TokenizerFiles, template_literals: str
) -> list[AddedToken]:
    """TOK-2: what either file calls special, and visible tokens that a template writes."""
    entries = decoder_entries(files.tokenizer_config)
    special = {entry.get("content") for entry in entries if entry.get("special") is True}

    def is_control(token: AddedToken) -> bool:
        written = not token.content.isspace() and token.content in template_literals
        return token.special or token.content in special or written

    return [token for token in tokens if is_control(token)]


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}; send well-formed Unicode"
        ) from error
