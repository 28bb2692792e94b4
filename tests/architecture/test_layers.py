"""The shape of the package, as tests: who may import whom, lengths, and the torch-free start.

A row may import the rows that it names, the standard library and its own third-party parts; late
imports count. Rows run from the bottom up and name only rows above them here, so that no cycle can
be written down.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "forerun"

TEXT = {"tokenizer", "grammar", "media", "chat", "store"}
ENGINE = {"prefix", "sampling", "speculation"}
DATA = {"kernels", "quant", "cache", "nn", "models", "engine"} | ENGINE

MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "settings": {"base"},
    "protocol": {"base"},
    "contract": {"base"},
    "tokenizer": {"base"},
    "grammar": {"base"},
    "media": {"base"},
    "chat": {"base", "protocol"},
    "store": {"base"},
    "kernels": {"base"},
    "quant": {"base", "kernels"},
    "cache": {"base", "contract", "kernels"},
    "prefix": {"base", "contract"},
    "sampling": {"base", "contract", "kernels"},
    "nn": {"base", "contract", "kernels", "quant"},
    "speculation": {"base", "contract", "sampling"},
    "models": {"base", "contract", "cache", "quant", "nn"},
    "engine": {"base", "contract"} | ENGINE,
    "runner": {"base", "settings", "protocol", "contract"} | TEXT | DATA,
    # `protocol` is not in DESIGN's two rows, nor `chat` in the importer's; decision 0004 says why.
    "importer": {
        *("base", "settings", "protocol", "contract"),
        *("store", "tokenizer", "chat", "quant", "models"),
    },
    # `cache` is not in DESIGN's row: the target writes its text into a static batch
    "training": {
        *("base", "settings", "protocol", "contract", "store", "tokenizer", "chat"),
        *("cache", "models", "nn", "quant", "sampling"),
    },
    "scheduler": {"base", "protocol", "store"},
    "api": {"base", "settings", "protocol", "store", "scheduler"},
    "client": {"base"},
    "cli": {"base", "settings", "protocol", "store", "scheduler", "api", "client"},
    "library": {"base", "settings", "protocol", "store", "scheduler", "runner"},
    "errors": {"base"},
}

THIRD_PARTY: dict[str, set[str]] = {
    "base": set(),
    "settings": set(),
    "protocol": {"msgspec"},
    "contract": {"torch"},
    "tokenizer": {"tokenizers"},
    "grammar": {"llguidance"},
    "media": {"PIL", "soundfile", "soxr", "numpy"},
    "chat": {"jinja2"},
    "store": {"huggingface_hub"},
    "scheduler": {"msgspec", "pynvml"},
    "api": {"starlette", "msgspec", "uvicorn", "prometheus_client"},
    "client": set(),
    "cli": {"click", "rich", "prompt_toolkit"},
}
TORCH_FREE = {
    *("base", "settings", "protocol", "scheduler", "api", "client", "cli", "library", "errors"),
    *TEXT,
}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50

FILES = sorted(ROOT.rglob("*.py"))
IDS = [str(file.relative_to(ROOT)) for file in FILES]


def _layer(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(tree: ast.AST) -> set[str]:
    """Every module named, those inside functions too: a late import is still a dependency."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_a_layer_imports_only_what_its_row_allows(file: Path) -> None:
    layer = _layer(file)
    if layer in ("__init__", "__main__"):
        return
    named = _imports(ast.parse(file.read_text()))
    ours = {name.split(".")[1] for name in named if name.startswith("forerun.")}
    assert ours - {layer, "__version__"} <= MAY_IMPORT[layer]
    theirs = {name.split(".")[0] for name in named} - set(sys.stdlib_module_names) - {"forerun"}
    if layer in THIRD_PARTY:
        assert theirs <= THIRD_PARTY[layer], f"{layer} is not given {theirs - THIRD_PARTY[layer]}"


def test_the_table_has_no_cycle() -> None:
    seen: set[str] = set()
    for layer, below in MAY_IMPORT.items():
        assert below <= seen, f"{layer} names a layer that is not under it: {below - seen}"
        seen.add(layer)


def test_every_package_has_a_row() -> None:
    assert {_layer(file) for file in FILES} <= set(MAY_IMPORT) | {"__init__", "__main__"}


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_files_and_functions_stay_short(file: Path) -> None:
    source = file.read_text()
    assert source.count("\n") <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} is {length} lines"


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_every_module_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_only_settings_reads_the_environment(file: Path) -> None:
    """08 ENV: the table of variables is read in one place."""
    if _layer(file) == "settings":
        return
    text = file.read_text()
    assert "environ" not in text.replace("environment", "")
    assert "getenv" not in text


@pytest.mark.parametrize("layer", sorted(TORCH_FREE & {_layer(file) for file in FILES}))
def test_the_control_and_text_planes_start_without_torch(layer: str) -> None:
    """08 RUN-1: `forerun help` and everything before a model is loaded work without torch."""
    modules = [file for file in FILES if _layer(file) == layer and file.stem != "__main__"]
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in modules]
    names = [".".join(("forerun", *part)).removesuffix(".__init__") for part in parts]
    code = f"import sys, {', '.join(names)}; print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT.parent), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"
