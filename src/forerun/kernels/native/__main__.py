"""`python -m forerun.kernels.native` says in one line of JSON what would serve, without torch.

isa: the instruction set in use, or null; threads: logical cores that a team could use; library:
the path of the shared object, or null; reason: why there is none, or null.
"""

import json
import sys

from forerun.kernels.native import library


def main() -> None:
    found = library.load()
    facts = {
        "isa": found.team(1).isa if found else None,
        "threads": library.usable_cores(),
        "library": str(found.path) if found else None,
        "reason": library.why_not(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
