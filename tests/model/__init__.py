"""The state machine of `test_stateful`, and what it must find: the oracle that knows it all."""
