"""llama.cpp's own measure of its divergence, from exact logits that we write for it.

`llama-perplexity --kl-divergence` reads a file of tokens and of the log probabilities of another
model, evaluates the tokens itself and reports. It scores the second half of a sequence only, and
takes probabilities below e^-16 for none.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import numpy
from numpy.typing import NDArray

from benchmarks.distributions import Quality, Reading, Text

MAGIC = b"_logits_"
STEPS = 65535  # between the lowest and the highest logit that a row keeps
DEPTH = 16.0  # nats below the highest logit where a row ends
ROWS = 128  # converted at once

Array = NDArray[numpy.float32]


def scored(length: int) -> range:
    """The positions of a sequence of `length` tokens that the tool scores."""
    return range(length // 2, length - 1)


def llama_quality(binary: str, gguf: Path, reading: Reading) -> Quality:
    """llama.cpp on `gguf` beside the exact logits."""
    exact, context = numpy.load(reading.exact, mmap_mode="r"), str(reading.text.positions)
    with TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        with base.open("wb") as file:
            write_base(file, reading.text, exact)
        command = [binary, "-m", str(gguf), "-t", "1", "-c", context, "-b", context]
        command += ["--kl-divergence", "--kl-divergence-base", str(base)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return reported(done.stdout + done.stderr)


def write_base(file: BinaryIO, text: Text, exact: Array) -> None:
    """The tool's file: header, tokens, and a row for each scored position.

    exact  logits [positions, vocabulary]
    """
    count, vocabulary = exact.shape
    file.write(MAGIC)
    file.write(numpy.array([count, vocabulary, 1], numpy.int32).tobytes())  # one sequence
    file.write(numpy.array(text.tokens[:count], numpy.int32).tobytes())
    for rows in _in_turn(exact, scored(count)):
        file.write(compressed(rows).tobytes())


def _in_turn(exact: Array, positions: range) -> Iterator[Array]:
    for first in range(positions.start, positions.stop, ROWS):
        yield exact[first : min(first + ROWS, positions.stop)]


def compressed(logits: Array) -> NDArray[numpy.uint16]:
    """Each row as step and lowest log probability, two float32, and codes of 16 bits."""
    count, vocabulary = logits.shape
    highest = logits.max(-1, keepdims=True)
    lowest = numpy.maximum(logits.min(-1, keepdims=True), highest - DEPTH)
    total = numpy.log(numpy.exp(logits - highest, dtype=numpy.float64).sum(-1, keepdims=True))
    step = (highest - lowest) / STEPS
    rows = numpy.zeros((count, 4 + vocabulary + vocabulary % 2), numpy.uint16)
    terms = numpy.concatenate([step, lowest - highest - total], -1).astype(numpy.float32)
    rows[:, :4] = terms.view(numpy.uint16)
    above = (logits - lowest).clip(0) / numpy.where(step == 0, 1, step)
    rows[:, 4 : 4 + vocabulary] = numpy.rint(above).clip(0, STEPS)
    return rows


def reported(output: str) -> Quality:
    """The figures among what the tool prints."""

    def figure(label: str) -> float:
        match = re.search(rf"^{re.escape(label)}\s*:\s*(-?[\d.]+)", output, re.MULTILINE)
        assert match, f"llama-perplexity reported no {label!r}:\n{output[-2000:]}"
        return float(match[1])

    return Quality(
        divergence=figure("Mean    KLD"),
        same_top=figure("Same top p") / 100,
        perplexity=figure("Mean PPL(Q)"),
    )
