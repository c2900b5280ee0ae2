"""Examples; run from the project's folder, for instance `python -m examples.demo`."""
