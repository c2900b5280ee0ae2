"""The demo: two workers, a SIGKILL, a poison pill, and the books balanced at the end."""
