"""Settings that every test shares."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches a hub; set before it is imported
if "PYTEST_XDIST_WORKER" in os.environ:  # others run beside it: torch's threads would collide
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# A fixed search in CI keeps a red run about the change; a developer's own runs look elsewhere.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
