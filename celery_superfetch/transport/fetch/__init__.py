"""The fetch loop of a channel: it claims jobs, or waits for them by blocking reads.

``transport/channel.py`` makes a ``FetchLoop`` for each channel that consumes, and the poller lets
it tick. If the process dies, the jobs that were fetched stay in Redis, and a reaper requeues them.
This package never decodes a message: that is for the channel and its consumers.
"""
