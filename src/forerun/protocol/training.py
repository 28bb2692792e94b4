"""What is asked of a training process, and the progress it reports.

As with an importer: one request as a JSON line on standard input, events on standard output, the
last one `TrainedHead` or `Failed`. Standard input closing means that the parent is gone.
"""

from forerun.protocol.events import Failed
from forerun.protocol.requests import Struct


class TrainRequest(Struct, tag="train"):
    """Train a draft head for the model `name` and write it into the folder `out`."""

    name: str
    out: str
    minutes: float  # all in all, writing and measuring included
    texts: list[str] = []  # files with prompts of the user's own, beside the packaged ones
    device: str | None = None
    seed: int = 0
    start: str | None = None  # folder of a head to go on from


class TrainStatus(Struct, tag="training_status"):
    """What is going on, and how much of it is done."""

    status: str
    completed: int
    total: int


class TrainedHead(Struct, tag="trained"):
    """The head lies in its folder. Lists are by place in the chain of drafts."""

    folder: str
    acceptance: list[float]  # of each draft whose forerunners were accepted, on held-out prompts
    tokens_a_round: list[float]  # at each depth, the target's own token included


TrainEvent = TrainStatus | TrainedHead | Failed
