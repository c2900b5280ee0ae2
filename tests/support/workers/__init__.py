"""The package's own structures, put together for tests that run in this process."""
