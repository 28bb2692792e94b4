"""Special ids: where a model says which tokens begin and end a text (spec 06 TOK-4)."""

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer as Library

from forerun.base.errors import LoadError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.tokenizer.files import CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, TokenizerFiles


@dataclass(frozen=True, slots=True)
class Frame:
    """What goes around a text that is encoded on its own, such as one to embed (08 API-13)."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """`names` is what chat templates see (`bos_token`, `eos_token`, `pad_token`, ...)."""

    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool
    names: dict[str, str]
    frame: Frame


def find_special_tokens(files: TokenizerFiles, library: Library) -> SpecialTokens:
    """The first source that has them: generation_config, config, tokenizer_config, the map.

    Where tokenizer_config has no add_bos_token, the library's post-processor answers: what it puts
    before an empty text. No prompt ends in EOS, so add_eos_token is not asked for.
    """
    names = _names(files)
    bos = _ids(files, "bos", names, library)
    if len(bos) > 1:
        raise LoadError(f"bos_token_id is {list(bos)}; a model has one BOS token")
    eos = _ids(files, "eos", names, library)
    first = library.encode("", add_special_tokens=True).ids[:1]
    add_bos = _flag(files.tokenizer_config, "add_bos_token")
    if add_bos and not bos:
        raise LoadError(f"{TOKENIZER_CONFIG}: add_bos_token is true, and no file names a BOS token")
    return SpecialTokens(
        bos_id=bos[0] if bos else None,
        eos_ids=eos,
        add_bos=bool(bos) and first == [*bos] if add_bos is None else add_bos,
        names={**_spelled(library, bos_token=bos, eos_token=eos), **names},
        frame=_frame(library),
    )


def _frame(library: Library) -> Frame:
    """What the post-processor of tokenizer.json does; transformers heeds no flag beside it."""
    bare, framed = (library.encode("a", add_special_tokens=added).ids for added in (False, True))
    size = len(bare)
    starts = (at for at in range(len(framed) - size + 1) if framed[at : at + size] == bare)
    at = next(starts, None) if size else None
    return Frame() if at is None else Frame(tuple(framed[:at]), tuple(framed[at + size :]))


def _ids(
    files: TokenizerFiles, kind: str, names: dict[str, str], library: Library
) -> tuple[int, ...]:
    for where, value in _stated_ids(files, f"{kind}_token_id"):
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise LoadError(f"{where}: {kind}_token_id is {value!r}; it must be a token id")
        if ids:
            return tuple(i for i in ids if isinstance(i, int))
    named = library.token_to_id(names.get(f"{kind}_token", ""))
    return () if named is None else (named,)


def _stated_ids(files: TokenizerFiles, key: str) -> Iterator[tuple[str, JsonValue]]:
    text_config = files.config.get("text_config")
    nested = text_config if isinstance(text_config, dict) else {}
    sources = (
        (GENERATION_CONFIG, files.generation_config),
        (CONFIG, files.config),
        (f"{CONFIG} text_config", nested),
    )
    for where, source in sources:
        if source.get(key) is not None:
            yield where, source[key]


def _names(files: TokenizerFiles) -> dict[str, str]:
    names: dict[str, str] = {}
    for source in (files.special_tokens_map, files.tokenizer_config):
        for key, value in source.items():
            text = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(text, str) and text:
                names[key] = text
    return names


def _spelled(library: Library, **ids: tuple[int, ...]) -> dict[str, str]:
    """Names for templates where only ids are stated."""
    texts = {name: library.id_to_token(found[0]) for name, found in ids.items() if found}
    return {name: text for name, text in texts.items() if text is not None}


def _flag(config: JsonObject, key: str) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise LoadError(f"{TOKENIZER_CONFIG}: {key} is {value!r}; it must be true or false")
    return value
