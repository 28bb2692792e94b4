"""Running ahead of the target: rounds that propose, verify and commit, and how deep to go."""
